"""Workflows over HTTP (ojs-workflows, ojs-http-binding section 14)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.backend.conftest import Client

WORKFLOWS = "/ojs/v1/workflows"
QUEUE = {"options": {"queue": "flow"}}


def job(kind: str, *args: object, **fields: object) -> dict[str, object]:
    return {"type": kind, "args": list(args), **QUEUE, **fields}


async def begin(client: Client, body: object) -> Any:
    return await client.ask("POST", WORKFLOWS, body, 201)


async def get(client: Client, workflow_id: str) -> Any:
    return (await client.ask("GET", f"{WORKFLOWS}/{workflow_id}"))["workflow"]


async def work(client: Client, **results: object) -> list[Any]:
    """Do all jobs that are there now; each returns what is given for its type, with _ for its dots."""
    jobs = await client.fetch("flow", count=50)
    for one in jobs:
        await client.ack(one["id"], result=results.get(one["type"].replace(".", "_")))
    return jobs


async def test_a_chain_passes_results_on(client: Client) -> None:
    steps = [job("data.extract", 1, name="first"), job("data.transform"), job("data.load")]
    made = await begin(client, {"type": "chain", "name": "etl", "steps": steps})
    assert made["workflow"]["id"] == made["id"]
    assert (made["type"], made["name"], made["state"]) == ("chain", "etl", "running")
    assert [one["state"] for one in made["steps"]] == ["pending", "waiting", "waiting"]
    assert (made["steps_total"], made["steps_completed"]) == (3, 0)
    first = await work(client, data_extract={"rows": 3})
    assert [(one["type"], one["workflow_id"]) for one in first] == [("data.extract", made["id"])]
    second = await work(client, data_transform={"clean": 2})
    assert second[0]["parent_results"] == [{"rows": 3}]
    third = await work(client, data_load="done")
    assert third[0]["parent_results"] == [{"rows": 3}, {"clean": 2}]
    assert third[0]["parent_results_by_step"] == {"0": {"rows": 3}, "1": {"clean": 2}}
    found = await get(client, made["id"])
    assert (found["state"], found["steps_completed"], found["result"]) == ("completed", 3, "done")
    assert [one["result"] for one in found["steps"]] == [{"rows": 3}, {"clean": 2}, "done"]
    assert found["metadata"]["completed_count"] == 3
    assert found["completed_at"]


async def test_a_step_has_its_retry_policy_as_it_was_given(client: Client) -> None:
    retry = {"max_attempts": 3, "initial_interval": "PT5M", "jitter": True}
    await begin(client, {"type": "chain", "steps": [job("one", retry=retry)]})
    (first,) = await client.fetch("flow")
    assert first["retry"] == (await client.job(first["id"]))["retry"] == retry


@pytest.mark.parametrize("callbacks", [None, {}, {"on_success": None}])
async def test_a_batch_without_callbacks_is_refused_by_their_name(client: Client, callbacks: object) -> None:
    body = {"type": "chain", "steps": [{"type": "batch", "jobs": [job("one")], "callbacks": callbacks}]}
    for given, path in ((body["steps"][0], "$.callbacks"), (body, "$.steps[0].callbacks")):
        error = (await client.ask("POST", WORKFLOWS, given, 400))["error"]
        assert [one["path"] for one in error["details"]["validation_errors"]] == [path]


async def test_the_kind_of_a_workflow_has_two_names(client: Client) -> None:
    """ojs-ml-resources section 12.1: the steps must not run at the same time."""
    made = await begin(client, {"workflow_type": "chain", "steps": [job("one"), job("two")]})
    assert (made["type"], [one["state"] for one in made["steps"]]) == ("chain", ["pending", "waiting"])
    await client.ask("POST", WORKFLOWS, {"workflow_type": "ring", "steps": [job("one")]}, 400)


async def test_a_chain_stops_at_a_failure(client: Client) -> None:
    made = await begin(client, {"type": "chain", "jobs": [job("one", retry={"max_attempts": 1}), job("two")]})
    (first,) = await client.fetch("flow")
    await client.nack(first["id"])
    found = await get(client, made["id"])
    assert (found["state"], found["failed_step_index"]) == ("failed", 0)
    assert [one["state"] for one in found["steps"]] == ["failed", "cancelled"]
    assert [one["job_id"] for one in found["steps"]] == [first["id"], None]
    assert found["failed_job_ids"] == [first["id"]]
    assert found["errors"][0]["message"] == "no"
    assert await client.fetch("flow") == []
    await client.ask("POST", f"{WORKFLOWS}/{made['id']}/retry")
    assert [one["type"] for one in await work(client)] == ["one"]
    assert [one["type"] for one in await work(client)] == ["two"]
    assert (await get(client, made["id"]))["state"] == "completed"


async def test_a_group_runs_side_by_side(client: Client) -> None:
    made = await begin(client, {"type": "group", "jobs": [job("resize", size) for size in range(5)]})
    assert (made["jobs_total"], made["jobs_completed"]) == (5, 0)
    assert {one["state"] for one in made["jobs"]} == {"pending"}
    assert [one["args"] for one in await work(client, resize=1)] == [[0], [1], [2], [3], [4]]
    found = await get(client, made["id"])
    assert (found["state"], found["jobs_completed"]) == ("completed", 5)
    assert found["result"] == {str(index): 1 for index in range(5)}


@pytest.mark.parametrize("fails", [False, True])
async def test_a_batch_calls_back(client: Client, *, fails: bool) -> None:
    names = ("on_complete", "on_success", "on_failure")
    body = {
        "type": "batch",
        "jobs": [job("send", 1), job("send", 2, retry={"max_attempts": 1})],
        "callbacks": {name: {"type": name.replace("_", "."), "options": {"queue": "flow"}} for name in names},
    }
    made = await begin(client, body)
    assert made["metadata"]["job_count"] == 2
    first, second = await client.fetch("flow", count=2)
    await client.ack(first["id"], result="a")
    await (client.nack(second["id"]) if fails else client.ack(second["id"], result="b"))
    called = await work(client)
    assert sorted(one["type"] for one in called) == ["on.complete", "on.failure" if fails else "on.success"]
    assert called[0]["parent_results"][0] == "a"
    found = await get(client, made["id"])
    assert found["state"] == "completed"
    assert found["callbacks"]["on_complete"]["state"] == "completed"
    assert (found["metadata"]["completed_count"], found["metadata"]["failed_count"]) == (1, 1) if fails else (2, 0)
    assert len(found["steps"]) == 2


async def test_a_graph_follows_its_dependencies(client: Client) -> None:
    steps = [
        {"id": "a", "type": "step.a", "args": []},
        {"id": "b", "type": "step.b", "args": [], "depends_on": []},
        {"id": "c", "type": "step.c", "args": [], "depends_on": ["a", "b"]},
    ]
    made = await begin(client, {"name": "onboarding", "steps": steps, **QUEUE})
    assert [(one["id"], one["state"]) for one in made["steps"]] == [
        ("a", "available"),
        ("b", "available"),
        ("c", "pending"),
    ]
    assert made["steps"][2]["job_id"] is None
    assert made["steps"][2]["depends_on"] == ["a", "b"]
    assert len(await work(client, step_a=1, step_b=2)) == 2
    (last,) = await work(client)
    assert (last["parent_results"], last["parent_results_by_step"]) == ([1, 2], {"a": 1, "b": 2})
    assert (await get(client, made["id"]))["state"] == "completed"


async def test_a_graph_in_a_row_is_shown_as_a_chain(client: Client) -> None:
    steps = [{"id": "a", "type": "a", "args": []}, {"id": "b", "type": "b", "args": [], "depends_on": ["a"]}]
    assert (await begin(client, {"name": "row", "steps": steps}))["type"] == "chain"
    assert (await begin(client, {"name": "row", "steps": steps[:1]}))["type"] == "group"


async def test_workflows_within_workflows(client: Client) -> None:
    group = {"type": "group", "name": "fan-out", "jobs": [job("csv"), job("pdf")]}
    made = await begin(client, {"type": "chain", "steps": [job("extract"), group, job("load")]})
    await work(client, extract=1)
    assert sorted(one["type"] for one in await work(client, csv="c", pdf="p")) == ["csv", "pdf"]
    (last,) = await work(client)
    assert last["parent_results"] == [1, {"0": "c", "1": "p"}]
    found = await get(client, made["id"])
    assert [one["type"] for one in found["steps"][1]["steps"]] == ["csv", "pdf"]


async def test_cancel(client: Client) -> None:
    made = await begin(client, {"type": "group", "jobs": [job("one"), job("two"), job("three")]})
    (running,) = await client.fetch("flow")
    found = await client.ask("DELETE", f"{WORKFLOWS}/{made['id']}")
    assert found["workflow"]["state"] == "cancelled"
    assert found["steps_cancelled"] == 2
    assert [one["job_id"] for one in found["steps"]] == [one["job_id"] for one in made["steps"]]
    assert found["cancelled_at"]
    assert await client.fetch("flow", count=5) == []
    await client.ack(running["id"])
    refused = await client.ask("DELETE", f"{WORKFLOWS}/{made['id']}", status=409)
    assert refused["error"]["details"]["current_state"] == "cancelled"


async def test_the_list_is_stable_while_workflows_begin(client: Client) -> None:
    made = [(await begin(client, {"type": "chain", "name": f"w{n}", "steps": [job("one")]}))["id"] for n in range(5)]
    page = await client.ask("GET", f"{WORKFLOWS}?limit=2")
    assert [one["id"] for one in page["workflows"]] == [made[4], made[3]]
    await begin(client, {"type": "chain", "steps": [job("one")]})
    cursor = page["pagination"]["next_cursor"]
    page = await client.ask("GET", f"{WORKFLOWS}?limit=9&cursor={cursor}")
    assert [one["id"] for one in page["workflows"]] == [made[2], made[1], made[0]]
    assert (page["pagination"]["has_more"], page["pagination"]["total"]) == (False, 6)
    assert len((await client.ask("GET", f"{WORKFLOWS}?state=running"))["workflows"]) == 6
    assert (await client.ask("GET", f"{WORKFLOWS}?state=completed"))["workflows"] == []
    assert [one["id"] for one in (await client.ask("GET", f"{WORKFLOWS}?name=w3"))["workflows"]] == [made[3]]


STEP = {"id": "a", "type": "a", "args": []}


async def test_what_is_wrong_is_named(client: Client) -> None:
    cases: list[tuple[object, str]] = [
        ({}, "steps"),
        ({"type": "ring", "steps": [STEP]}, "type"),
        ({"type": 3, "steps": [STEP]}, "type"),
        ({"type": ["chain"], "steps": [STEP]}, "type"),
        ({"type": "chain", "steps": []}, "steps"),
        ({"type": "group", "jobs": "x"}, "jobs"),
        ({"type": "chain", "steps": [3]}, "steps[0]"),
        ({"type": "chain", "steps": [{"type": ["a"], "args": []}]}, "steps[0].type"),
        ({"type": "chain", "steps": [{"type": "a", "args": [], "options": 3}]}, "steps[0].options"),
        ({"type": "chain", "steps": [{"type": "UPPER", "args": []}]}, "steps[0].type"),
        ({"type": "batch", "jobs": [STEP]}, "callbacks"),
        ({"type": "batch", "jobs": [STEP], "callbacks": {"on_monday": STEP}}, "callbacks.on_monday"),
        ({"type": "batch", "jobs": [STEP], "callbacks": {"on_success": 1}}, "callbacks.on_success"),
        ({"type": "group", "jobs": [STEP], "callbacks": {"on_success": STEP}}, "workflow"),
        ({"steps": [STEP, STEP]}, "workflow"),
        ({"steps": [{"type": "a", "args": []}]}, "workflow"),
        ({"steps": [{**STEP, "depends_on": ["b"]}]}, "workflow"),
        ({"steps": [{**STEP, "depends_on": "a"}]}, "steps[0].depends_on"),
        ({"steps": [{**STEP, "depends_on": ["b"]}, {**STEP, "id": "b", "depends_on": ["a"]}]}, "workflow"),
        ({"type": "chain", "name": 3, "steps": [STEP]}, "name"),
        ({"type": "chain", "name": "x" * 300, "steps": [STEP]}, "workflow"),
        ({"type": "chain", "options": 3, "steps": [STEP]}, "options"),
    ]
    for body, field in cases:
        found = await client.ask("POST", WORKFLOWS, body, 400)
        assert found["error"]["code"] == "invalid_request"
        assert found["error"]["details"]["field"] == field


async def test_a_step_may_be_scheduled_for_any_time(client: Client) -> None:
    made = await begin(client, {"type": "chain", "steps": [job("one", scheduled_at="2099-12-31T23:59:59Z")]})
    found = await client.job(made["steps"][0]["job_id"])
    assert (found["state"], found["scheduled_at"]) == ("scheduled", "2099-12-31T23:59:59Z")


async def test_nested_too_deeply(client: Client) -> None:
    body: dict[str, object] = {"type": "chain", "steps": [STEP]}
    for _ in range(9):
        body = {"type": "chain", "steps": [body]}
    await client.ask("POST", WORKFLOWS, body, 400)


async def test_unknown(client: Client) -> None:
    cases: list[str] = ["GET", "DELETE"]
    for method in cases:
        await client.ask(method, f"{WORKFLOWS}/019461a8-1a2b-7c3d-8e4f-5a6b00000000", status=404)
        await client.ask(method, f"{WORKFLOWS}/nobody", status=404)


async def test_a_cursor_of_something_else_is_refused(client: Client) -> None:
    await client.ask("GET", f"{WORKFLOWS}?cursor=x", status=400)
    await client.ask("GET", "/ojs/v1/jobs?cursor=!!!", status=400)


async def test_the_list_has_pages_and_offsets(client: Client) -> None:
    ids = [(await begin(client, {"type": "chain", "name": str(n), "steps": [STEP]}))["id"] for n in range(3)][::-1]
    for query, expected in (("page=2&per_page=2", ids[2:]), ("offset=1&limit=1", ids[1:2]), ("page=4&per_page=1", [])):
        found = await client.ask("GET", f"{WORKFLOWS}?{query}")
        assert [one["id"] for one in found["items"]] == expected
        assert found["pagination"]["total"] == 3
    found = await client.ask("GET", f"{WORKFLOWS}?page=2&per_page=1")
    assert found["pagination"].items() >= {"page": 2, "per_page": 1, "has_more": True, "next_cursor": ids[1]}.items()
    await client.ask("GET", f"{WORKFLOWS}?offset=10001", status=400)
    events = await client.ask("GET", "/ojs/v1/events?per_page=100")
    second = await client.ask("GET", "/ojs/v1/events?page=2&per_page=3")
    assert second["items"] == events["items"][3:6]
    assert (second["pagination"]["page"], second["pagination"]["per_page"]) == (2, 3)


@pytest.mark.parametrize(("kind", "key", "halves"), [("chain", "steps", 1), ("group", "jobs", 2), ("batch", "jobs", 0)])
async def test_the_progress_of_a_workflow_is_that_of_its_steps(
    client: Client, kind: str, key: str, halves: int
) -> None:
    """ojs-progress section 9: a step of a batch counts when it is completed."""
    callbacks = {"callbacks": {"on_complete": job("done")}} if kind == "batch" else {}
    made = await begin(client, {"type": kind, key: [job("one"), job("two"), job("three")], **callbacks})
    path = f"{WORKFLOWS}/{made['id']}/progress"
    found = await client.ask("GET", path)
    assert (found["workflow_id"], found["type"], found["progress"]) == (made["id"], kind, 0.0)
    assert [(one["state"], one["progress"]) for one in found["steps"]] == [("pending", None)] * 3
    ended = await client.fetch("flow", count=1)
    await client.ack(ended[0]["id"])
    for one in (await client.fetch("flow", count=50))[:2]:
        await client.ask("PUT", f"/ojs/v1/jobs/{one['id']}/progress", {"progress": 0.5, "data": {"row": 7}})
    found = await client.ask("GET", path)
    assert found["progress"] == pytest.approx((1 + halves / 2) / 3, abs=0.001)
    steps = found["steps"]
    assert (steps[0]["progress"], steps[0]["state"], steps[0]["job_id"]) == (1.0, "completed", ended[0]["id"])
    assert (steps[1]["progress"], steps[1]["data"]) == (0.5, {"row": 7})
    await client.ask("GET", f"{WORKFLOWS}/nothing/progress", status=404)


async def test_a_part_of_a_workflow_has_the_progress_of_its_jobs(client: Client) -> None:
    part = {"type": "group", "jobs": [job("one"), job("two")]}
    made = await begin(client, {"type": "chain", "steps": [part, job("three")]})
    await client.ack((await client.fetch("flow", count=1))[0]["id"])
    found = await client.ask("GET", f"{WORKFLOWS}/{made['id']}/progress")
    assert (found["progress"], found["steps"][0]["progress"]) == (0.25, 0.5)
    assert [one["progress"] for one in found["steps"][0]["steps"]] == [1.0, None]
    await work(client)
    await work(client)
    assert (await client.ask("GET", f"{WORKFLOWS}/{made['id']}/progress"))["progress"] == 1.0


async def test_the_jobs_of_a_workflow_have_its_tenant(client: Client) -> None:
    """ojs-multi-tenancy section 15.2."""

    async def tenants(body: object, **headers: str) -> list[object]:
        found = msgspec.json.decode((await client.send("POST", WORKFLOWS, body, **headers)).body)
        if "error" in found:
            return [found["error"]["code"]]
        return [one.get("meta", {}).get("tenant_id") for one in await client.fetch("flow", count=9)]

    acme, beta = ({"meta": {"tenant_id": name}} for name in ("acme", "beta"))
    assert await tenants({"type": "group", "jobs": [job("a"), job("b", **acme)]}) == ["acme"] * 2
    assert await tenants({"type": "group", "jobs": [job("a"), job("b")], **acme}) == ["acme"] * 2
    assert await tenants({"type": "group", "jobs": [job("a"), job("b")]}) == [None] * 2
    assert await tenants({"type": "group", "jobs": [job("a", **acme), job("b", **beta)]}) == ["invalid_request"]
    assert await tenants({"type": "group", "jobs": [job("a", **acme)], **beta}) == ["invalid_request"]
    header = {"x-ojs-tenant": "acme"}
    assert await tenants({"type": "chain", "steps": [job("a"), job("b")]}, **header) == ["acme"]
    assert await tenants({"type": "chain", "steps": [job("a"), job("b", **beta)]}, **header) == ["invalid_request"]


async def test_what_is_pushed_later_fits_its_schema(client: Client) -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    await client.ask(
        "POST", "/ojs/v1/schemas", {"job_type": "a.b", "version": "1.0.0", "mode": "strict", "schema": schema}, 201
    )
    good, bad = job("a.b", 1), job("a.b", "one")
    for steps in ([bad], [good, {"type": "group", "jobs": [good, bad]}]):
        found = (await client.ask("POST", WORKFLOWS, {"type": "chain", "steps": steps}, 422))["error"]
        assert found["code"] == "validation_error"
        assert found["message"].startswith("steps[")
    await client.ask("POST", WORKFLOWS, {"type": "chain", "steps": [good]}, 201)
    await client.ask("POST", "/ojs/v1/cron", {"name": "n", "expression": "@daily", **bad}, 422)
    await client.ask("POST", "/ojs/v1/cron", {"name": "n", "expression": "@daily", **good}, 201)
    await client.ask("PATCH", "/ojs/v1/cron/n", {"args": ["one"]}, 422)


async def test_a_cron_job_has_the_tenant_of_its_request(client: Client) -> None:
    body = {"name": "n", "expression": "@daily", "type": "a.b"}
    await client.send("POST", "/ojs/v1/cron", body, **{"x-ojs-tenant": "acme"})
    await client.ask("POST", "/ojs/v1/cron/n/trigger", None, 201)
    [found] = await client.fetch("default")
    assert found["meta"]["tenant_id"] == "acme"
