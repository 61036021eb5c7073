"""What makes the API work or hold much: bodies of many values, large messages, long passwords, long documents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from threading import get_ident
from typing import Any

import pytest

from tests.management.api import Api, running
from waybill.backend.large_answers import AT_ONCE, LARGE_BYTES
from waybill.backend.message import Request
from waybill.management.application import Application
from waybill.management.definitions import BATCH
from waybill.management.listing import BATCH as LIST_BATCH
from waybill.management.listing import WHOLE_MAX
from waybill.management.messages import ANSWER_MAX_BYTES
from waybill.node.passwords import PASSWORD_MAX, Credential

VALUES = b"[" + b"{}," * 100_000 + b"{}]"
BODIES = [
    ("POST", "/definitions", b'{"queues":%b,"users":%b,"policies":%b}' % (VALUES, VALUES, VALUES)),
    ("POST", "/definitions/%2F", b'{"queues":%b,"bindings":%b,"policies":%b}' % (VALUES, VALUES, VALUES)),
    ("PUT", "/queues/%2F/q", b'{"arguments":{"a":%b}}' % VALUES),
    ("PUT", "/users/u", b'{"tags":%b}' % VALUES),
    ("PUT", "/parameters/vhost-limits/%2F/limits", b'{"value":%b}' % VALUES),
    ("POST", "/exchanges/%2F/amq.default/publish", b'{"properties":{"headers":{"a":%b}}}' % VALUES),
    ("POST", "/queues/%2F/q/get", b'{"count":1,"encoding":%b}' % VALUES),
]


@pytest.mark.parametrize(("method", "path", "body"), BODIES)
async def test_a_body_of_too_many_values_is_refused(method: str, path: str, body: bytes) -> None:
    async with running() as api:
        await api.queue("q")
        reply = await api.ask(method, path, body)
        assert (reply.status, reply.json["reason"]) == (413, "the body has too many values")


async def test_a_file_of_too_many_values_is_refused() -> None:
    async with running() as api:
        head = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
        form = head + b'{"queues":%b,"users":%b,"policies":%b}' % (VALUES, VALUES, VALUES) + b"\r\n--b--\r\n"
        headers = {"content-type": "multipart/form-data; boundary=b"}
        assert (await api.ask("POST", "/definitions", form, headers=headers)).status == 413
        endless = {"content-type": "multipart/form-data; boundary="}
        assert (await api.ask("POST", "/definitions", b"-" * 1_000_000, headers=endless)).status == 400


async def test_a_password_is_not_longer_than_it_is_quick_to_prepare() -> None:
    async with running() as api:
        assert await api.put("/users/long", {"password": "x" * (PASSWORD_MAX + 1), "tags": ""}) == 400
        assert await api.put("/users/long", {"password": "x" * PASSWORD_MAX, "tags": "management"}) == 201
        assert await api.get("/whoami", login="long:" + "x" * PASSWORD_MAX)


def counted(api: Api) -> Callable[[], int]:
    """Count how many changes wait for the disk at a time; return how to read the most."""
    perform, waiting, most = api.management.context.perform, 0, 0

    async def counting(change: Any) -> Any:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        try:
            await asyncio.sleep(0)
            return await perform(change)
        finally:
            waiting -= 1

    api.management.context.perform = counting  # type: ignore[method-assign]
    return lambda: most


async def test_large_messages_take_turns() -> None:
    async with running() as api:
        await api.queue("q")
        most = counted(api)
        await asyncio.gather(*(api.publish("q", "x" * LARGE_BYTES) for _ in range(3 * AT_ONCE)))
        assert most() <= AT_ONCE
        await asyncio.gather(*(api.publish("q", "small") for _ in range(3 * AT_ONCE)))
        assert most() == 3 * AT_ONCE


@pytest.mark.plain_source
async def test_new_passwords_take_turns_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as api:
        accounts = api.management.context.administration.accounts
        make, hashing, most, threads = accounts.credential, 0, 0, set[int]()

        def counting(password: str) -> Credential:
            nonlocal hashing, most
            hashing += 1
            most = max(most, hashing)
            threads.add(get_ident())
            try:
                return make(password)
            finally:
                hashing -= 1

        monkeypatch.setattr(accounts, "credential", counting)
        await asyncio.gather(*(api.put(f"/users/u{n}", {"password": f"p{n}", "tags": ""}) for n in range(5)))
        assert most == 1
        assert get_ident() not in threads
        assert api.broker.node.authenticate("u3", "p3", "127.0.0.1:50000") is not None


async def test_an_answer_has_some_megabytes_of_messages() -> None:
    async with running() as api:
        await api.queue("q")
        size = ANSWER_MAX_BYTES // 2
        for payload in "abcd":
            await api.publish("q", payload * size)
        body = {"count": 10, "ackmode": "ack_requeue_false", "encoding": "auto"}
        for expected in ("ab", "cd", ""):
            found = (await api.ask("POST", "/queues/%2F/q/get", body)).json
            assert [one["payload"][0] for one in found] == list(expected)
            assert all(len(one["payload"]) == size for one in found)


async def test_a_long_document_is_written_while_others_are_served() -> None:
    async with running() as api:
        queues = [{"name": f"q{n}", "vhost": "/", "durable": True, "auto_delete": False} for n in range(3 * BATCH)]
        bindings = [
            {"source": "amq.direct", "vhost": "/", "destination": f"q{n}", "destination_type": "queue"}
            for n in range(3 * BATCH)
        ]
        assert (await api.ask("POST", "/definitions", {"queues": queues, "bindings": bindings})).status == 204
        response = await api.begin("GET", "/definitions")
        assert response.stream is not None
        pieces = []
        async for piece in response.stream:
            pieces.append(piece)
            if len(pieces) == 2:
                # It tells of the moment in which it was asked for.
                assert (await api.ask("DELETE", "/queues/%2F/q1")).status == 204
        document = json.loads(b"".join(pieces))
        assert len(pieces) > 6
        assert [one["name"] for one in document["queues"]] == [one["name"] for one in queues]
        assert len(document["bindings"]) == len(bindings)
        one = await api.get("/definitions/%2F")
        assert len(one["queues"]) == len(queues) - 1
        assert all("vhost" not in queue for queue in one["queues"])
        assert set(one) == {
            *("rabbit_version", "rabbitmq_version", "parameters", "policies", "queues", "exchanges", "bindings")
        }


async def test_a_value_that_json_cannot_express_is_named_before_anything_is_sent() -> None:
    async with running() as api:
        arguments: dict[str, object] = {"x": b"\xff"}
        host = api.broker.node.virtual_hosts["/"]
        await api.broker.changes.perform(
            lambda _node: host.declare_queue(
                "odd", durable=True, auto_delete=False, exclusive_to=None, connection=None, arguments=arguments
            )
        )
        reply = await api.ask("GET", "/definitions")
        assert reply.status == 400
        assert "odd" in reply.json["reason"]


async def test_long_lists_are_limited_in_sum_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.management.long_answers.ITEMS_MAX", 2 * WHOLE_MAX)
    async with running() as api:
        queues = [{"name": f"q{n}", "vhost": "/", "durable": True} for n in range(WHOLE_MAX + 1)]
        assert (await api.ask("POST", "/definitions", {"queues": queues})).status == 204
        first = await api.begin("GET", "/queues")
        assert first.stream is not None
        await anext(first.stream)
        assert (await api.ask("GET", "/queues")).status == 503
        assert (await api.ask("GET", "/queues?page=1")).status == 200
        await first.stream.aclose()  # type: ignore[attr-defined]
        assert len(await api.get("/queues")) == len(queues)


async def test_each_iteration_of_the_loop_makes_a_part_of_one_answer() -> None:
    async with running() as api:
        queues = [{"name": f"q{n}", "vhost": "/", "durable": True} for n in range(WHOLE_MAX + 1)]
        assert (await api.ask("POST", "/definitions", {"queues": queues})).status == 204
        turns, made = 0, 0

        async def count_turns() -> None:
            nonlocal turns
            while made < 3:
                turns += 1
                await asyncio.sleep(0)

        async def read() -> None:
            nonlocal made
            await api.get("/queues")
            made += 1

        await asyncio.gather(count_turns(), *(read() for _ in range(3)))
        assert turns >= 3 * len(queues) // LIST_BATCH


def test_a_server_that_has_no_room_says_so() -> None:
    for code, status in (("overloaded", 503), ("request_timeout", 408), ("payload_too_large", 413)):
        assert Application.refuse(Request("GET", "/"), code, "text").status == status
