"""A change under an idempotency key is made once: whoever asks again, wherever, and whatever was killed meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.backend.conftest import Client, client_of
from waybill.backend.errors import RequestRefused
from waybill.backend.idempotency import MAX_TOTAL_BYTES, Claim, _AnswerQuota, _Unanswered
from waybill.backend.message import Request, Response
from waybill.backend.router import Handler

JOB = {"type": "email.send", "args": [1], "options": {"queue": "email"}}


async def post(client: Client, key: str, body: object = JOB, path: str = "jobs") -> Response:
    return await client.send("POST", f"/ojs/v1/{path}", body, **{"idempotency-key": key})


def read(response: Response) -> Any:
    return msgspec.json.decode(response.body)


async def waiting(client: Client) -> int:
    found: int = (await client.ask("GET", "/ojs/v1/queues/email/stats"))["stats"]["available"]
    return found


async def test_who_asks_twice_gets_the_same_answer(client: Client) -> None:
    first, second = [await post(client, "k1") for _ in range(2)]
    assert (first.status, second.status) == (201, 201)
    assert first.body == second.body
    assert [dict(one.headers).get("Idempotency-Replayed") for one in (first, second)] == [None, "true"]
    assert dict(first.headers)["Location"] == dict(second.headers)["Location"]
    assert await waiting(client) == 1
    assert read(await post(client, "k2"))["id"] != read(first)["id"]


async def test_answers_beyond_the_room_for_all_are_made_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = await post(client, "k1")
    monkeypatch.setattr("waybill.backend.idempotency.MAX_TOTAL_BYTES", len(kept.body))
    first, second = [await post(client, "k2") for _ in range(2)]
    assert (first.status, second.status) == (201, 201)
    assert read(first)["id"] == read(second)["id"]
    assert await waiting(client) == 2
    assert dict(second.headers).get("Idempotency-Replayed") is None
    assert (await post(client, "k1")).body == kept.body


def test_room_for_answers_is_free_again_after_their_time() -> None:
    room, hour = _AnswerQuota(), 3600.0
    assert room.take(MAX_TOTAL_BYTES - 10, 1000 * hour)
    assert not room.take(11, 1000 * hour)
    assert room.take(10, 1010 * hour)
    assert not room.take(1, 1025 * hour)
    assert room.take(MAX_TOTAL_BYTES - 10, 1026 * hour)
    assert not room.take(1, 1026 * hour)


def test_claims_without_answers_are_limited_and_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.idempotency.MOST_UNANSWERED", 2)
    claims, hour = _Unanswered(), 3600.0
    assert claims.add("k1", 0)
    assert claims.add("k2", 1)
    assert claims.add("k1", 2)
    assert not claims.add("k3", 25 * hour)
    assert claims.add("k3", 25 * hour + 2)
    claims.remove("k3")
    claims.remove("k3")
    assert claims.add("k4", 25 * hour + 2)


async def test_requests_beyond_the_claims_without_answers_are_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.backend.idempotency.MOST_UNANSWERED", 1)

    async def fails(_request: Request) -> Response:
        raise RequestRefused("backend_error", "It may be done.")

    def failing() -> Request:
        return Request("DELETE", "/ojs/v1/queues/email", headers={"idempotency-key": "k1"})

    for _ in range(2):
        with pytest.raises(RequestRefused, match="may be done"):
            await client.backend.extensions.idempotency.handle(failing(), "k1", fails)
    refused = await post(client, "k2")
    assert (refused.status, read(refused)["error"]["code"]) == (503, "overloaded")
    assert (await client.send("POST", "/ojs/v1/jobs", JOB)).status == 201

    async def works(_request: Request) -> Response:
        return Response(200)

    assert (await client.backend.extensions.idempotency.handle(failing(), "k1", works)).status == 200
    assert (await post(client, "k2")).status == 201
    assert (await post(client, "k3", {"type": "email.send"})).status == 400
    assert (await post(client, "k4")).status == 201


async def test_a_key_stands_for_one_request(client: Client) -> None:
    await post(client, "k1")
    refused = await post(client, "k1", {**JOB, "args": [2]})
    assert (refused.status, read(refused)["error"]["code"]) == (409, "conflict")
    assert (await post(client, "k1", {"jobs": [JOB]}, "jobs/batch")).status == 201
    assert await waiting(client) == 2


@pytest.mark.parametrize("path", ["jobs/bulk", "jobs/bulk/cancel", "admin/jobs/bulk/cancel"])
async def test_a_bulk_operation_may_have_its_key_in_the_body(client: Client, path: str) -> None:
    job_id = await client.push()
    body = {"idempotency_key": "k1", "jobs": [JOB, {}], "job_ids": [job_id, "nobody"], "confirm": True}
    first, second = [await client.send("POST", f"/ojs/v1/{path}", body) for _ in range(2)]
    assert first.status in {200, 207}
    assert (second.status, second.body) == (first.status, first.body)
    assert dict(second.headers)["Idempotency-Replayed"] == "true"
    assert (await client.send("POST", f"/ojs/v1/{path}", body | {"atomicity": "atomic"})).status == 409
    # The header wins.
    assert (await post(client, "k2", body, path)).body != first.body
    for key in (1, "", "a" * 257):
        assert (await client.send("POST", f"/ojs/v1/{path}", body | {"idempotency_key": key})).status == 400


async def test_who_asks_at_the_same_time_waits_for_the_first(client: Client) -> None:
    answers = await asyncio.gather(*(post(client, "k1") for _ in range(5)))
    assert {one.body for one in answers} == {answers[0].body}
    assert await waiting(client) == 1


async def test_who_comes_as_another_ends_waits_for_those_before_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates: list[asyncio.Future[None]] = []

    async def once(*_: object) -> Response:
        gates.append(asyncio.get_running_loop().create_future())
        await gates[-1]
        return Response(200)

    idempotency = client.backend.extensions.idempotency
    monkeypatch.setattr(idempotency, "_once", once)

    def ask() -> asyncio.Task[Response]:
        request = Request("DELETE", "/ojs/v1/queues/email", headers={"idempotency-key": "k1"})
        return asyncio.create_task(idempotency.handle(request, request.headers["idempotency-key"], once))

    async def turns(count: int = 5) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    asked = [ask(), ask()]
    await turns()
    gates[0].set_result(None)
    # It comes after the end of the first, and before the second has noticed that it may go on.
    asked.append(ask())
    await turns()
    assert len(gates) == 2
    gates[1].set_result(None)
    await turns()
    gates[2].set_result(None)
    assert [one.status for one in await asyncio.gather(*asked)] == [200] * 3


@pytest.mark.parametrize("key", ["", "x" * 257, "a\nb", "\x00"])
async def test_a_bad_key_is_refused(client: Client, key: str) -> None:
    assert (await post(client, key)).status == 400


async def test_errors_are_not_kept(client: Client) -> None:
    assert (await post(client, "k1", {"type": "email.send"})).status == 400
    assert (await post(client, "k1", b"{")).status == 400
    assert (await post(client, "k1")).status == 201


async def test_the_answer_is_there_after_a_restart(uri: str) -> None:
    async with client_of(uri) as client:
        one, many = await post(client, "k1"), await post(client, "k2", {"jobs": [JOB] * 40}, "jobs/batch")
    async with client_of(uri) as client:
        assert (await post(client, "k1")).body == one.body
        assert (await post(client, "k2", {"jobs": [JOB] * 40}, "jobs/batch")).body == many.body
        assert await waiting(client) == 41


async def test_another_server_knows_the_answer(uri: str) -> None:
    async with client_of(uri) as one, client_of(uri) as two:
        first = await post(one, "k1")
        assert (await post(two, "k1")).body == first.body


@pytest.mark.parametrize("count", [1, 3])
async def test_a_server_that_dies_before_it_answers_leaves_nothing_twice(
    uri: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    body, path = (JOB, "jobs") if count == 1 else ({"jobs": [JOB] * count}, "jobs/batch")
    async with client_of(uri) as client:
        monkeypatch.setattr(client.backend.extensions.records, "put_soon", lambda *_, **__: None)
        first = read(await post(client, "k1", body, path))
    async with client_of(uri) as client:
        again = await post(client, "k1", body, path)
        ids = [[job["id"] for job in one.get("jobs", [one])] for one in (first, read(again))]
        assert again.status == 201
        assert ids[0] == ids[1]
        assert await waiting(client) == count
        assert (await post(client, "k1", body, path)).body == again.body


@pytest.mark.parametrize("count", [1, 3])
async def test_a_server_that_dies_before_it_tells_of_a_job_leaves_nothing_twice(
    uri: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """It dies between the broker's confirm of the job and the event that tells of it."""
    body, path = (JOB, "jobs") if count == 1 else ({"jobs": [JOB] * count}, "jobs/batch")
    async with client_of(uri) as client:
        await client.push()
        with monkeypatch.context() as patch:
            patch.setattr(client.backend.extensions.records, "put_soon", lambda *_, **__: None)
            patch.setattr("waybill.ojs.push.outgoing.record", lambda *_: None)
            patch.setattr("waybill.backend.backend.FOLD_SECONDS", 0.01)
            first = read(await post(client, "k1", body, path))
    async with client_of(uri) as client:
        again = await post(client, "k1", body, path)
        ids = [[job["id"] for job in one.get("jobs", [one])] for one in (first, read(again))]
        assert again.status == 201
        assert ids[0] == ids[1]
        assert await waiting(client) == count + 1
        fetched = await client.fetch(count=10)
        assert [job["id"] for job in fetched][1:] == ids[0]
        assert [job["attempt"] for job in fetched] == [1] * (count + 1)


async def test_a_queue_that_is_too_long_to_look_into_gets_nothing_twice(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.backend.unreported_jobs.MAX_SEARCHED", 2)
    async with client_of(uri) as client:
        for _ in range(3):
            await client.push()

        async def die(_request: Request) -> Response:
            raise asyncio.CancelledError

        request = Request("POST", "/ojs/v1/jobs", {}, {"idempotency-key": "k1"}, msgspec.json.encode(JOB))
        with pytest.raises(asyncio.CancelledError):
            await client.backend.extensions.idempotency.handle(request, request.headers["idempotency-key"], die)
    async with client_of(uri) as client:
        refused = await post(client, "k1")
        assert (refused.status, read(refused)["error"]["code"]) == (503, "overloaded")
        assert len(await client.fetch(count=10)) == 3
        assert (await post(client, "k1")).status == 201


async def test_a_batch_that_was_cut_is_made_whole(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"jobs": [{**JOB, "args": [n]} for n in range(4)]}
    async with client_of(uri) as client:
        monkeypatch.setattr(client.backend.extensions.records, "put_soon", lambda *_, **__: None)

        async def die(request: Request) -> Response:
            jobs = request.json()["jobs"]
            assert isinstance(jobs, list)
            await client.ask("POST", "/ojs/v1/jobs/batch", {"jobs": jobs[:2]}, 201)
            raise asyncio.CancelledError

        headers = {"idempotency-key": "k1"}
        request = Request("POST", "/ojs/v1/jobs/batch", {}, headers, msgspec.json.encode(body))
        with pytest.raises(asyncio.CancelledError):
            await client.backend.extensions.idempotency.handle(request, request.headers["idempotency-key"], die)
    async with client_of(uri) as client:
        found = read(await post(client, "k1", body, "jobs/batch"))
        assert [job["args"] for job in found["jobs"]] == [[0], [1], [2], [3]]
        assert await waiting(client) == 4


async def test_a_request_that_another_server_is_at_is_waited_for(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.idempotency.POLL_SECONDS", 0.01)
    async with client_of(uri) as one, client_of(uri) as two:
        begun, release = asyncio.Event(), asyncio.Event()

        async def slow(_request: Request) -> Response:
            begun.set()
            await release.wait()
            return Response(200, b"{}")

        async def other(_request: Request) -> Response:
            raise AssertionError("it was made twice")

        def ask(client: Client, handler: Handler) -> asyncio.Future[Response]:
            request = Request("POST", "/x", {}, {"idempotency-key": "k"}, b"{}")
            return asyncio.ensure_future(
                client.backend.extensions.idempotency.handle(request, request.headers["idempotency-key"], handler)
            )

        first = ask(one, slow)
        await begun.wait()
        second = ask(two, other)
        await two.backend.extensions.records.put("thing/a", Claim("", "", ""))
        release.set()
        assert (await first).body == (await second).body == b"{}"


async def test_a_large_answer_is_told_again_as_it_is_then(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.idempotency.MAX_KEPT_BYTES", 10)
    first, second = read(await post(client, "k1")), read(await post(client, "k1"))
    assert (first["id"], first["state"]) == (second["id"], second["state"])
    assert await waiting(client) == 1


def test_what_is_kept_is_small() -> None:
    assert len(msgspec.json.encode(Claim("d" * 64, "s" * 36, "q", 201, "/x", b"x" * 300))) < 1000
