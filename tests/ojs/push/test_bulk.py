"""Tables of jobs arrive as jobs that are pushed one by one do, and what happens to some of them is said of each."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from tests.ojs.eye import Eye, until
from tests.ojs.proxy import Proxy
from waybill.client import BasicProperties, ReconnectPolicy
from waybill.ojs import InvalidJob, Jobs, PushFailed, Retry, Topology
from waybill.ojs.push.bulk import BulkPush, JobKind, JobTable, TableFailed
from waybill.ojs.spec.headers import push_properties
from waybill.ojs.topology.topology import Declaration
from waybill.testing import TestBroker

TIME = "2026-02-15T10:30:00.123Z"
SOON = ReconnectPolicy(first_delay_s=0.01)


def ids(count: int, start: int = 0) -> list[str]:
    return [f"019414d4-8b2e-7c3a-b5d1-{number:012x}" for number in range(start, start + count)]


def table(kinds: Sequence[JobKind], start: int = 0) -> JobTable:
    """A job of each of these kinds, with its number as argument and its id as key."""
    own = ids(len(kinds), start)
    return JobTable(kinds, own, [b"[%d]" % number for number in range(start, start + len(kinds))], own)


async def all_of(push: BulkPush, jobs: JobTable) -> int:
    await push.push(jobs)
    return await push.finish()


async def arrived(eye: Eye, queue: str, count: int) -> list[Any]:
    return [(await eye.wait_for(f"ojs.queue.{queue}")).json()["args"][0] for _ in range(count)]


def test_a_message_is_that_of_a_job_pushed_by_itself() -> None:
    jobs = Jobs("amqp://localhost")
    options: list[Any] = [{}, {"queue": "email", "priority": -7, "timeout": 2.5}, {"retry": Retry(max_attempts=9)}]
    kinds = [jobs.kind("email.send", one) for one in options] * 2
    args: list[object] = ["ü", 1, {"a": None}]
    keys = ["short", "a key with ü", "", *ids(3, 3)]
    made = JobTable(kinds, ids(6), [msgspec.json.encode(args)] * 6, keys)
    for kind, job_id, key, (body, encoded) in zip(kinds, made.ids, keys, made.messages(TIME), strict=True):
        envelope = msgspec.structs.replace(kind.prototype, id=job_id, args=args, created_at=TIME, enqueued_at=TIME)
        assert body == envelope.encode()
        properties = BasicProperties.decode(encoded)
        trace = str((properties.headers or {})["x-ojs-trace-id"])
        assert properties == push_properties(envelope, max_priority=10, traceparent=trace, idempotency_key=key)
        assert encoded == properties.encode()
    assert len({bytes(encoded) for _, encoded in made.messages(TIME)}) == 6


def test_the_longest_arguments_fill_the_longest_envelope() -> None:
    kind = Jobs("amqp://localhost").kind("email.send", {"queue": "email"})
    longest = b'["' + b"x" * (kind.args_bytes - 4) + b'"]'
    body, _ = next(JobTable([kind], ids(1), [longest], ids(1)).messages(TIME))
    assert len(body) == 16 * 1024 * 1024


def test_a_kind_is_valid() -> None:
    jobs = Jobs("amqp://localhost")
    with pytest.raises(InvalidJob, match="type"):
        jobs.kind("NO TYPE", {})
    with pytest.raises(InvalidJob, match="queue"):
        jobs.kind("email.send", {"queue": "dlx.x"})
    with pytest.raises(ValueError, match="tags"):
        jobs.kind("email.send", {"tags": ["one's own"]})


async def test_tables_arrive_whole_and_in_order_with_their_events(
    broker_uri: str, eye: Eye, queue_names: Callable[[], str]
) -> None:
    first, second = queue_names(), queue_names()
    async with Jobs(broker_uri) as jobs:
        await jobs.push("warm.up", queue=first)
        tap = await eye.tap("ojs.exchange.events", "#")
        kinds = [jobs.kind("bulk.item", {"queue": queue}) for queue in (first, second)]
        push = await jobs.bulk()
        for start in range(0, 9000, 3000):
            await push.push(table([kinds[number % 3 == 0] for number in range(3000)], start))
        assert await push.finish() == 9000
    assert await eye.count(f"ojs.queue.{first}") == 6001
    await eye.wait_for(f"ojs.queue.{first}")
    assert await arrived(eye, first, 20) == [number for number in range(30) if number % 3]
    assert await arrived(eye, second, 10) == list(range(0, 30, 3))
    told: list[Any] = []
    while (message := await eye.get(tap)) is not None:
        told += found if isinstance(found := message.json(), list) else [found]
    assert sorted(event["subject"] for event in told) == ids(9000)
    assert {event["type"] for event in told} == {"job.enqueued"}
    assert Counter(event["data"]["queue"] for event in told) == {first: 6000, second: 3000}


async def test_a_key_that_json_must_escape_is_in_the_event_as_it_is(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:
        await jobs.push("warm.up", queue=queue_name)
        tap = await eye.tap("ojs.exchange.events", "#")
        push = await jobs.bulk()
        await push.push(JobTable([jobs.kind("bulk.item", {"queue": queue_name})], ids(1), [b"[]"], ['say "hi"']))
        await push.finish()
        event = json.loads((await eye.wait_for(tap)).body)
    assert event["data"]["unique_key"] == 'say "hi"'


async def test_jobs_of_a_lost_connection_are_pushed_again(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Proxy(broker_uri) as proxy, Jobs(proxy.uri, reconnect=SOON) as jobs:
        kind = jobs.kind("bulk.item", {"queue": queue_name})
        push = await jobs.bulk()
        await push.push(table([kind] * 600))
        proxy.cut()
        await push.push(table([kind] * 600, 600))
        assert await push.finish() == 1200
    seen = await arrived(eye, queue_name, await eye.count(f"ojs.queue.{queue_name}"))
    assert set(seen) == set(range(1200))


async def test_a_broker_that_does_not_come_back_fails_the_jobs(broker_uri: str, queue_name: str) -> None:
    async with (
        Proxy(broker_uri) as proxy,
        Jobs(proxy.uri, push_timeout=3.0, reconnect=SOON, create_queues=True) as jobs,
    ):
        kind = jobs.kind("bulk.item", {"queue": queue_name})
        push = await jobs.bulk()
        await push.push(table([kind] * 10))
        assert await push.finish() == 10
        proxy.refusing = True
        proxy.cut()
        with pytest.raises(TableFailed) as caught:
            await all_of(push, table([kind] * 500, 10))
        assert caught.value.code == "BACKEND_UNAVAILABLE"
        assert caught.value.failures[0][0] == 10


async def test_a_deleted_queue_is_declared_again(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:
        kind = jobs.kind("bulk.item", {"queue": queue_name})
        push = await jobs.bulk()
        await push.push(table([kind] * 10))
        assert await push.finish() == 10
        await eye.call(lambda: eye.channel.queue_delete(f"ojs.queue.{queue_name}"))
        await push.push(table([kind] * 10, 10))
        assert await push.finish() == 20
    assert await arrived(eye, queue_name, 10) == list(range(10, 20))


async def test_jobs_that_no_queue_takes_are_named(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:
        await jobs.push("warm.up", queue=queue_name)
    async with Jobs(broker_uri, topology=Topology(declaration=Declaration.NEVER)) as jobs:
        known, unknown = (jobs.kind("bulk.item", {"queue": name}) for name in (queue_name, f"{queue_name}.unknown"))
        push = await jobs.bulk()
        with pytest.raises(TableFailed) as caught:
            await all_of(push, table([known, unknown, known, unknown]))
    assert caught.value.code == "NOT_FOUND"
    assert [(place, failed.job_id) for place, failed in caught.value.failures] == [(1, ids(4)[1]), (3, ids(4)[3])]
    assert await eye.count(f"ojs.queue.{queue_name}") == 3


async def test_jobs_that_a_full_queue_refuses_are_named(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri, topology=Topology(max_length=2)) as jobs:
        push = await jobs.bulk()
        with pytest.raises(TableFailed) as caught:
            await all_of(push, table([jobs.kind("bulk.item", {"queue": queue_name})] * 600))
    assert caught.value.code == "QUEUE_FULL"
    places = [place for place, _ in caught.value.failures]
    assert [failed.job_id for _, failed in caught.value.failures] == [ids(600)[place] for place in places]
    assert places == sorted(set(range(600)) - set(await arrived(eye, queue_name, 2)))


async def test_a_broker_that_takes_no_publishes_fails_what_it_has_not_confirmed() -> None:
    with TestBroker() as broker:
        async with Jobs(broker.uri(), push_timeout=0.3) as jobs:
            kind = jobs.kind("bulk.item", {"queue": "bulk"})
            push = await jobs.bulk()
            await push.push(table([kind] * 300))
            connection = await jobs.broker_connection()
            await until(lambda: connection.publishing.unconfirmed_count == 0)
            broker.fill_disk()
            with pytest.raises(PushFailed):
                await jobs.push("another.one")
            with pytest.raises(TableFailed, match="1 of the jobs of a table failed") as caught:
                await push.push(table([kind] * 10, 300))
            (place, failed) = caught.value.failures[0]
            assert place == 300
            assert "low on disk" in str(failed)
            broker.free_disk()
        assert len(broker.assert_enqueued("bulk.item")) == 300


async def test_a_broker_that_takes_no_publishes_is_waited_for_where_asked() -> None:
    with TestBroker() as broker:
        async with Jobs(broker.uri(), push_timeout=0.1, wait_while_blocked=True) as jobs:
            kind = jobs.kind("bulk.item", {"queue": "bulk"})
            push = await jobs.bulk()
            await push.push(table([kind] * 300))
            await jobs.push("one.more")
            connection = await jobs.broker_connection()
            await until(lambda: connection.publishing.unconfirmed_count == 0)
            broker.fill_disk()
            single = asyncio.create_task(jobs.push("one.more"))
            await until(lambda: connection.connection.blocked is not None)
            bulk = asyncio.create_task(all_of(push, table([kind] * 10, 300)))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(bulk), 0.2)
            assert not single.done()
            broker.free_disk()
            await single
            assert await bulk == 310
        assert len(broker.assert_enqueued("bulk.item")) == 310
        broker.assert_enqueued("one.more", count=2)
