"""Pools of workers and strategies of fetches, over HTTP (ojs-fair-scheduling)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.backend.conftest import Client, client_of

POOLS = "/ojs/v1/admin/pools"
TENANTS = "/ojs/v1/admin/tenants"


async def fill(client: Client, **counts: int) -> None:
    for queue, count in counts.items():
        job = {"type": "a.b", "args": [], "options": {"queue": queue}}
        await client.ask("POST", "/ojs/v1/jobs/batch", {"jobs": [job] * count}, 201)


async def queues_of(client: Client, *queues: str, **fields: Any) -> list[str]:
    return [job["queue"] for job in await client.fetch(*queues, **fields)]


async def put(client: Client, name: str, status: int = 200, **pool: object) -> Any:
    return await client.ask("PUT", f"{POOLS}/{name}", pool, status)


async def test_without_a_strategy_the_first_queue_comes_first(client: Client) -> None:
    await fill(client, a=3, b=3)
    assert await queues_of(client, "a", "b", count=4) == ["a", "a", "a", "b"]


async def test_round_robin_takes_one_of_each(client: Client) -> None:
    await fill(client, a=4, b=4, c=1)
    found = [await queues_of(client, "a", "b", "c", strategy="round-robin") for _ in range(6)]
    assert found == [["a"], ["b"], ["c"], ["a"], ["b"], ["a"]]
    rest = await queues_of(client, "a", "b", "c", strategy="round-robin", count=10)
    assert sorted(rest) == ["a", "b", "b"]


async def test_weights_share_the_jobs_of_a_fetch(client: Client) -> None:
    await fill(client, a=30, b=30, c=2)
    weights = {"a": 3, "b": 1}
    assert Counter(await queues_of(client, "a", "b", strategy="weighted", weights=weights, count=12)) == {
        "a": 9,
        "b": 3,
    }
    rest = await queues_of(client, "c", "a", "b", strategy="weighted", weights={"c": 100}, count=12)
    assert Counter(rest) == {"c": 2, "a": 9, "b": 1}


async def test_the_deepest_queue_comes_first_for_the_least_loaded(client: Client) -> None:
    await fill(client, a=1, b=3)
    found = [await queues_of(client, "a", "b", strategy="least-loaded") for _ in range(4)]
    assert Counter(queue for one in found[:2] for queue in one) == {"b": 2}
    assert sorted(queue for one in found[2:] for queue in one) == ["a", "b"]


async def test_a_worker_of_a_pool_gets_what_the_pool_says(client: Client) -> None:
    await put(client, "general", queues=["a", "b"], strategy="round-robin", concurrency=50)
    await fill(client, a=3, b=3, other=1)
    fetched = await client.ask(
        "POST", "/ojs/v1/workers/fetch", {"worker_id": "w1", "pool": "general", "strategy": "strict", "count": 4}
    )
    assert Counter(job["queue"] for job in fetched["jobs"]) == {"a": 2, "b": 2}
    # It stays a worker of the pool, which has no other queues.
    assert await queues_of(client, "a", "other", count=4) == ["a"]
    await client.ask("POST", "/ojs/v1/workers/fetch", {"worker_id": "w1", "queues": ["other"]}, 403)
    found = await client.ask("GET", f"{POOLS}/general")
    assert (found["active_workers"], found["active_jobs"], found["utilization"]) == (1, 5, 0.1)
    assert [one["name"] for one in (await client.ask("GET", POOLS))["items"]] == ["general"]
    await client.ask("DELETE", f"{POOLS}/general")
    await client.ask("GET", f"{POOLS}/general", status=404)
    await client.ask("DELETE", f"{POOLS}/general", status=404)
    assert await queues_of(client, "other") == ["other"]


async def test_a_heartbeat_joins_a_pool(client: Client) -> None:
    await put(client, "p", queues=["a"])
    await client.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w1", "pool": "p"})
    assert (await client.ask("GET", f"{POOLS}/p"))["active_workers"] == 1
    await client.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w1", "pool": "none"}, 404)
    await client.ask("POST", "/ojs/v1/workers/fetch", {"pool": "p"}, 400)


async def test_so_many_jobs_of_a_pool_run_at_most(client: Client) -> None:
    await put(client, "p", queues=["a"], concurrency=3)
    running, most, done = 0, 0, 0

    async def work(name: str) -> None:
        nonlocal running, most, done
        while done < 20:
            for job in await client.fetch("a", worker=name, pool="p", count=2, wait_ms=1000):
                running += 1
                most = max(most, running, len(client.backend.leases))
                await asyncio.sleep(0)
                running -= 1
                await client.ack(job["id"])
                done += 1

    working = [asyncio.ensure_future(work(f"w{number}")) for number in range(5)]
    await fill(client, a=20)
    await asyncio.gather(*working)
    assert most == 3
    assert (await client.ask("GET", f"{POOLS}/p"))["active_jobs"] == 0


async def test_an_isolated_pool_keeps_its_queues(client: Client) -> None:
    await put(client, "gpu", queues=["images"], isolated=True)
    await fill(client, images=2, a=1)
    assert await queues_of(client, "images", "a", worker="other", count=5) == ["a"]
    await client.ask("POST", "/ojs/v1/workers/fetch", {"worker_id": "other", "queues": ["images"]}, 403)
    assert await queues_of(client, "images", worker="w1", pool="gpu", count=5) == ["images", "images"]


async def test_no_queue_of_a_pool_starves(client: Client) -> None:
    prevention = {"enabled": True, "rotation_interval": "PT30S", "min_dispatch_ratio": 0.1}
    await put(client, "p", queues=["urgent", "later"], strategy="strict", starvation_prevention=prevention)
    await fill(client, urgent=40, later=40)
    found = Counter[str]()
    for count in (1, 1, 10, 8, 20):
        found.update(await queues_of(client, "urgent", "later", pool="p", count=count))
        assert found.total() == 1 or found["later"] >= 0.1 * found.total()
    assert found["later"] <= 5
    stats = await client.ask("GET", "/ojs/v1/admin/scheduling/stats")
    assert stats["window"] == "PT1M"
    by_name = {one["name"]: one for one in stats["queues"]}
    assert by_name["urgent"]["dispatch_count_1m"] == found["urgent"] == by_name["urgent"]["active_jobs"]
    text = (await client.send("GET", "/metrics")).body.decode()
    assert f'ojs_scheduling_dispatch_total{{queue="later",pool="p"}} {found["later"]}' in text


async def test_tenants_have_weights(client: Client) -> None:
    found = await client.ask("PUT", f"{TENANTS}/acme", {"fairness_weight": 3})
    assert found["fairness_weight"] == found["fairness"]["weight"] == 3
    await client.ask("PUT", f"{TENANTS}/acme/limits", {"max_queue_depth": 100})
    await fill(client, **{"acme.mail": 12, "beta.mail": 12})
    fetched = await queues_of(client, "acme.mail", "beta.mail", strategy="weighted", count=8)
    assert Counter(fetched) == {"acme.mail": 6, "beta.mail": 2}


async def test_every_server_knows_the_pools(uri: str) -> None:
    async with client_of(uri) as one, client_of(uri) as other:
        await put(one, "p", queues=["a"], strategy="weighted", weights={"a": 2.5})
        while not (await other.ask("GET", POOLS))["items"]:
            await asyncio.sleep(0.01)
        assert (await other.ask("GET", f"{POOLS}/p"))["weights"] == {"a": 2.5}


@pytest.mark.parametrize(
    ("pool", "status"),
    [
        ({}, 400),
        ({"queues": []}, 400),
        ({"queues": ["a"] * 101}, 400),
        ({"queues": ["No"]}, 400),
        ({"queues": ["a"], "name": "q"}, 400),
        ({"queues": ["a"], "concurrency": 0}, 400),
        ({"queues": ["a"], "concurrency": True}, 400),
        ({"queues": ["a"], "strategy": "fast"}, 400),
        ({"queues": ["a"], "weights": {"b": 1}}, 400),
        ({"queues": ["a"], "weights": {"a": 0}}, 400),
        ({"queues": ["a"], "weights": {"a": 1e999}}, 400),
        ({"queues": ["a"], "isolated": "yes"}, 400),
        ({"queues": ["a"], "starvation_prevention": {"enabled": True, "rotation_interval": "P1Y"}}, 400),
        ({"queues": ["a"], "starvation_prevention": {"enabled": True, "rotation_interval": 5}}, 400),
        ({"queues": ["a", "b"], "starvation_prevention": {"enabled": True, "min_dispatch_ratio": 0.6}}, 400),
        ({"queues": ["a"], "color": "red"}, 422),
    ],
)
async def test_bad_pools_are_refused(client: Client, pool: dict[str, object], status: int) -> None:
    await client.ask("PUT", f"{POOLS}/p", pool, status)
    await client.ask("GET", f"{POOLS}/p", status=404)


@pytest.mark.parametrize(
    "fields", [{"strategy": "x"}, {"weights": []}, {"weights": {"a": -1}}, {"queues": None}, {"pool": 3}, {"pool": ""}]
)
async def test_bad_wishes_of_a_fetch_are_refused(client: Client, fields: dict[str, object]) -> None:
    await client.ask("POST", "/ojs/v1/workers/fetch", {"worker_id": "w", "queues": ["a"], **fields}, 400)
