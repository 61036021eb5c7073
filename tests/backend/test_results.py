"""Results: asked for, waited for, and told together."""

from __future__ import annotations

import asyncio

from tests.backend.conftest import Client


async def test_a_result_is_waited_for(client: Client) -> None:
    job_id = await client.push()
    path = f"/ojs/v1/jobs/{job_id}/result?wait=true"
    error = (await client.ask("GET", f"{path}&timeout=0", status=408))["error"]
    assert (error["code"], error["retryable"]) == ("wait_timeout", True)
    waiting = asyncio.ensure_future(client.ask("GET", path))
    while not len(client.backend.events.listeners):
        await asyncio.sleep(0)
    await client.fetch()
    await client.ack(job_id, result=[7])
    assert ((await waiting)["result"], (await waiting)["state"]) == ([7], "completed")
    assert (await client.ask("GET", path))["result"] == [7]
    await client.ask("GET", "/ojs/v1/jobs/nobody/result?wait=true", status=404)
    assert len(client.backend.events.listeners) == 0


async def test_a_result_that_is_too_large_is_refused_and_the_job_stays_active(client: Client) -> None:
    """ojs-results section 7.2."""
    for option, limit in ((None, 1024 * 1024), (10, 10)):
        job_id = await client.push() if option is None else await client.push(result_size_limit=option)
        await client.fetch()
        for attempt in ({}, {"attempt": 1}):
            error = (await client.ack(job_id, 413, result="x" * (limit - 1), **attempt))["error"]
            assert (error["code"], error["retryable"]) == ("RESULT_TOO_LARGE", False)
            assert error["details"] == {"job_id": job_id, "actual_bytes": limit + 1, "max_bytes": limit}
        assert (await client.job(job_id))["state"] == "active"
        result = "x" * (limit - 2)
        assert (await client.ack(job_id, result=result))["job"]["result"] == result


async def test_results_are_told_together(client: Client) -> None:
    done, waiting = await client.push(), await client.push("other")
    await client.fetch()
    await client.ack(done, result={"sent": True})
    found = (await client.ask("POST", "/ojs/v1/jobs/results", {"ids": [done, waiting, "nobody"]}))["results"]
    assert found[done]["result"] == {"sent": True}
    assert (found[waiting], found["nobody"]) == ({"state": "available", "result": None}, None)
    for ids in (7, [7], ["x"] * 1001, None):
        await client.ask("POST", "/ojs/v1/jobs/results", {"ids": ids}, 400)


async def test_clients_are_told_when_to_look_again(client: Client) -> None:
    """ojs-results section 8.1."""
    job_id = await client.push()
    for _ in range(2):
        headers = (await client.send("GET", f"/ojs/v1/jobs/{job_id}")).headers
        assert ("Retry-After", "1") in headers
        assert len(headers) == len(dict(headers))
    await client.fetch()
    await client.ack(job_id)
    assert "Retry-After" not in dict((await client.send("GET", f"/ojs/v1/jobs/{job_id}")).headers)


async def test_a_result_has_a_size_and_times(client: Client) -> None:
    """ojs-results section 6.2."""
    job_id = await client.push(result_ttl=3600)
    await client.fetch()
    await client.ack(job_id, result={"sent": True})
    job = await client.job(job_id)
    assert (job["result_size_bytes"], job["result_stored_at"]) == (len('{"sent":true}'), job["completed_at"])
    assert job["result_expires_at"] > job["result_stored_at"]
    found = await client.ask("GET", f"/ojs/v1/jobs/{job_id}/result")
    assert {name: found[name] for name in found if name.startswith("result_")} == {
        name: job[name] for name in job if name.startswith("result_") and name != "result_ttl"
    }


async def test_a_job_without_a_result_has_null(client: Client) -> None:
    """As in the example of ojs-results section 10.4."""
    job_id = await client.push()
    await client.fetch()
    await client.ack(job_id)
    found = (await client.ask("POST", "/ojs/v1/jobs/results", {"ids": [job_id]}))["results"][job_id]
    assert (found["state"], found["result"]) == ("completed", None)
