"""Tenants see and touch what is theirs: each route is tried with the key of another tenant."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.backend.conftest import Client, client_of
from waybill.backend.keys import InvalidKeyFile, Key, KeyRing, add_key, hash_of, read_keys
from waybill.backend.message import Request, Response
from waybill.backend.router import OPEN
from waybill.backend.routes import routes_of
from waybill.backend.tenancy import RULES

MARK = "secretacme"
JOB = {"type": f"{MARK}.run", "args": [MARK], "options": {"queue": "vault"}}
KEYS = KeyRing([Key(name, "admin", hash_of(name), name if name != "root" else "") for name in ("acme", "beta", "root")])


class Tenant:
    """Asks with one key."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = Client(client.backend, KEYS)
        self._name = name

    async def send(self, method: str, path: str, body: object = None, **headers: str) -> Response:
        raw = b"" if body is None else msgspec.json.encode(body)
        path, _, query = path.partition("?")
        fields = dict(one.split("=", 1) for one in query.split("&") if one)
        headers |= {"authorization": f"Bearer {self._name}"}
        path = path if path.startswith("/") else f"/ojs/v1/{path}"
        return await self._client.application.handle(Request(method, path, fields, headers, raw))

    async def ask(self, method: str, path: str, body: object = None, status: int = 200) -> Any:
        response = await self.send(method, path, body)
        found = msgspec.json.decode(response.body)
        assert response.status == status, found
        return found


@pytest.fixture
async def world(uri: str) -> AsyncIterator[Client]:
    async with client_of(uri) as client:
        client.backend.extensions.webhooks.allows_private = True
        yield client


async def furnish(world: Client) -> dict[str, str]:
    """Let acme have something of each kind; returns the names and ids."""
    acme = Tenant(world, "acme")
    dead = (await acme.ask("POST", "jobs", {**JOB, "retry": {"max_attempts": 1}}, 201))["id"]
    await acme.ask("POST", "workers/fetch", {"queues": ["vault"], "worker_id": "w"})
    await acme.ask("POST", "workers/nack", {"job_id": dead, "error": {"code": "x", "message": MARK}})
    active = (await acme.ask("POST", "jobs", JOB, 201))["id"]
    await acme.ask("POST", "workers/fetch", {"queues": ["vault"], "worker_id": "w"})
    waiting = (await acme.ask("POST", "jobs/batch", {"jobs": [JOB]}, 201))["jobs"][0]["id"]
    await acme.ask("POST", "cron", {"name": "vault", "expression": "0 0 1 1 *", "job_template": JOB}, 201)
    workflow = (await acme.ask("POST", "workflows", {"type": "chain", "steps": [JOB]}, 201))["id"]
    hook = {"url": f"http://127.0.0.1:9/{MARK}", "events": ["job.*"], "filter": {"queues": ["vault"]}}
    subscription = (await acme.ask("POST", "webhooks/subscriptions", hook, 201))["id"]
    return {"dead": dead, "active": active, "waiting": waiting, "workflow": workflow, "subscription": subscription}


async def state_of(world: Client, ids: dict[str, str]) -> list[object]:
    acme = Tenant(world, "acme")
    jobs = [(await acme.ask("GET", f"jobs/{ids[name]}"))["state"] for name in ("dead", "active", "waiting")]
    rest = [
        (await acme.ask("GET", f"workflows/{ids['workflow']}"))["state"],
        (await acme.ask("GET", "cron/vault"))["enabled"],
        (await acme.ask("GET", "queues/vault/stats"))["paused"],
        (await acme.ask("GET", f"webhooks/subscriptions/{ids['subscription']}"))["active"],
        (await acme.ask("GET", "dead-letter"))["count"],
    ]
    return jobs + rest


@pytest.mark.parametrize("path", ["jobs", "jobs/batch", "jobs/bulk"])
async def test_an_id_that_is_taken_tells_nothing_of_its_job(world: Client, path: str) -> None:
    ids = await furnish(world)
    job = {"type": "email.send", "args": [], "id": ids["active"]}
    for tenant, is_told in (("acme", True), ("beta", False)):
        body = job if path == "jobs" else {"jobs": [job]}
        response = await Tenant(world, tenant).send("POST", f"/ojs/v1/{path}", body)
        assert (b'"active"' in response.body) is is_told
        assert response.status == 409 or is_told


async def test_no_route_tells_or_does_anything_of_another_tenant(world: Client) -> None:
    ids = await furnish(world)
    before = await state_of(world, ids)
    beta = Tenant(world, "beta")
    told = {"job_id": ids["active"], "worker_id": "w", "progress": 0.5, "state": {}, "active": False, "confirm": True}
    bodies: list[object] = [
        {**told, "job_ids": [ids["waiting"], ids["dead"]], "ids": [ids["active"]], "active_jobs": [ids["active"]]},
        {**told, "filter": {"queue": "acme.vault"}, "queues": ["vault", "acme.vault"], "name": "acme.vault"},
    ]
    for route in routes_of(world.backend):
        if route.role == OPEN:
            continue
        kind = route.path.rpartition("/ojs/v1/")[2].split("/")[0]
        own = {"workflows": "workflow", "webhooks": "subscription", "dead-letter": "dead"}.get(kind)
        for one in [ids[own]] if own else [ids[name] for name in ("dead", "active", "waiting")]:
            for name in ("vault", "acme.vault") if "{name}" in route.path else ("vault",):
                path = re.sub(r"{(id|key|type|version)}", one, route.path).replace("{name}", name)
                query = f"?queue=acme.vault&queues=acme.vault&job_id={one}" if one == ids["active"] else ""
                for body in bodies if route.method != "GET" else bodies[:1]:
                    response = await beta.send(route.method, path + query, body)
                    if (route.method, route.path) not in RULES:
                        assert response.status == 403, route
                    if response.stream is None:
                        assert MARK.encode() not in response.body, (route, response.body)
                        assert response.status < 500, (route, response.body)
            if "{id}" not in route.path:
                break
    assert await state_of(world, ids) == before


async def test_the_rules_are_about_routes(world: Client) -> None:
    assert {route for route in RULES if route[0] in {"GET", "POST"}} - {
        one[:2] for one in routes_of(world.backend)
    } <= {
        ("POST", "/ojs/v1/webhooks/subscriptions/{id}"),
        ("GET", "/ojs/v1/webhooks/subscriptions/{id}/test"),
        ("GET", "/ojs/v1/webhooks/subscriptions/{id}/rotate-secret"),
        ("POST", "/ojs/v1/webhooks/deliveries"),
        ("POST", "/ojs/v1/webhooks/deliveries/{id}"),
        ("GET", "/ojs/v1/webhooks/deliveries/{id}/retry"),
    }


async def test_a_tenant_works_as_if_it_were_alone(world: Client) -> None:
    ids = await furnish(world)
    acme, beta, root = (Tenant(world, name) for name in ("acme", "beta", "root"))
    for tenant, count in ((acme, 4), (beta, 0)):
        found = await tenant.ask("GET", "jobs")
        assert (found["count"], found["pagination"]["total"]) == (count, count)
        assert {job["queue"] for job in found["jobs"]} <= {"vault"}
        assert [one["name"] for one in (await tenant.ask("GET", "queues"))["queues"]] == ["vault"] * bool(count)
        for path in ("cron", "workflows", "webhooks/subscriptions", "dead-letter"):
            assert (await tenant.ask("GET", path))["count"] == bool(count)
        assert bool((await tenant.ask("GET", "events"))["count"]) == bool(count)
    assert (await root.ask("GET", "jobs?queue=acme.vault"))["count"] == 4
    job = await acme.ask("GET", f"jobs/{ids['active']}")
    assert (job["meta"]["tenant_id"], job["args"], job["worker_id"]) == ("acme", [MARK], "w")
    assert (await acme.ask("POST", "workers/heartbeat", {"worker_id": "w", "active_jobs": [ids["active"]]}))[
        "jobs_extended"
    ] == [ids["active"]]
    assert (await acme.ask("PUT", f"jobs/{ids['active']}/progress", {"progress": 0.5, "worker_id": "w"}))[
        "acknowledged"
    ]
    await acme.ask("POST", "workers/ack", {"job_id": ids["active"], "worker_id": "w", "result": MARK})
    assert (await acme.ask("POST", "jobs/results", {"ids": [ids["active"]]}))["results"][ids["active"]][
        "result"
    ] == MARK
    assert (await acme.ask("POST", "jobs", {"type": "a.b", "args": []}, 201))["queue"] == "default"
    assert (await acme.ask("POST", f"dead-letter/{ids['dead']}/retry"))["queue"] == "vault"
    assert (await acme.ask("POST", "jobs/bulk/cancel", {"filter": {"queue": "vault"}}))["succeeded"] >= 1


async def test_nothing_leaves_the_queues_of_its_tenant(world: Client) -> None:
    acme = Tenant(world, "acme")
    template = {"type": "a.b", "args": [], "options": {"queue": "x"}}
    for body in (
        {"name": "a", "expression": "0 0 1 1 *", "type": "a.b", "queue": "default"},
        {"name": "b", "expression": "0 0 1 1 *", "job": template},
        {"name": "c", "expression": "0 0 1 1 *", "type": "a.b", "job_template": {"args": []}, "options": {}},
    ):
        await acme.ask("POST", "cron", body, 201)
    changes: list[object] = [
        {"options": {"priority": 3}},
        {"queue": "y"},
        {"job_template": {"options": {"queue": "z"}}},
    ]
    for change in changes:
        await acme.ask("PATCH", "cron/a", change)
    await acme.ask("PATCH", "cron/a", {"enabled": False})
    for cron in await world.backend.jobs.crons.list():
        assert (cron.name[:5], str(cron.options["queue"])[:5]) == ("acme.", "acme.")
    filters: list[object] = [{"queue": 5}, {"queue": {}}, {"queues": [1]}, {}, {"state": "available"}]
    for wanted in filters:
        await acme.ask("POST", "jobs/bulk/cancel", {"filter": wanted}, 400)
    hook = {"url": "http://127.0.0.1:9/", "events": ["job.*"], "filter": {"queues": ["vault"]}}
    made = await acme.ask("POST", "webhooks/subscriptions", hook, 201)
    assert made["filter"]["queues"] == ["vault"]
    found = world.backend.extensions.webhooks.subscriptions.get(made["id"])
    assert found is not None
    assert (found.tenant, found.queues) == ("acme", ["acme.vault"])


async def test_a_unique_key_is_of_one_tenant(world: Client) -> None:
    for unique in ({"keys": ["type"]}, {"key": "k"}, {"period": "PT1H"}):
        job: dict[str, object] = {"type": f"a.{'-'.join(unique)}", "args": [], "unique": unique}
        for name in ("acme", "beta"):
            await Tenant(world, name).ask("POST", "jobs", job, 201)
            await Tenant(world, name).ask("POST", "jobs", job, 409)
    workflow = {"type": "chain", "options": {"unique": {"key": "w"}}, "steps": [{"type": "a.b", "args": []}]}
    for name in ("acme", "beta"):
        tenant = Tenant(world, name)
        (step,) = (await tenant.ask("POST", "workflows", workflow, 201))["steps"]
        assert (await tenant.ask("GET", f"jobs/{step['job_id']}"))["meta"]["unique_key"] == f"{name}:w"


async def test_the_tenant_of_a_request_is_that_of_its_key(world: Client) -> None:
    acme = Tenant(world, "acme")
    assert (await acme.send("POST", "jobs", JOB, **{"x-ojs-tenant": "beta"})).status == 403
    assert (await acme.send("POST", "jobs", JOB, **{"x-ojs-tenant": "acme"})).status == 201
    assert (await acme.send("POST", "jobs", {**JOB, "meta": {"tenant_id": "beta"}})).status == 400


async def test_steps_go_to_the_tenants_queues(world: Client) -> None:
    acme, root = Tenant(world, "acme"), Tenant(world, "root")
    step = {"type": "a.b", "args": []}
    for body in (
        {"type": "chain", "steps": [step, {"type": "group", "jobs": [step, JOB]}]},
        {"type": "batch", "jobs": [step], "callbacks": {"on_complete": step}},
        {"type": "batch", "jobs": [step], "on_success": JOB},
        {"type": "batch", "jobs": [step], "callbacks": {}, "on_success": step},
        {"type": "group", "jobs": [{**step, "steps": []}, {**step, "jobs": [], "options": {"queue": "x"}}]},
        {"name": "graph", "options": {"queue": "other"}, "steps": [{"id": "a", **step}]},
    ):
        found = await acme.ask("POST", "workflows", body, 201)
        assert (await acme.ask("GET", f"workflows/{found['id']}"))["id"] == found["id"]
    for job in (await root.ask("GET", "jobs"))["jobs"]:
        assert job["queue"].startswith("acme.")
        assert job["meta"]["tenant_id"] == "acme"


def test_a_key_file_has_tenants(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add_key(path, "shop", "operate", "acme")
    assert read_keys(path).check({"authorization": f"Bearer {key}"}, "read").tenant == "acme"
    for name in ("a.b", "A", "-a", "a/b", "x" * 49):
        with pytest.raises(InvalidKeyFile):
            add_key(path, "bad", "read", name)
