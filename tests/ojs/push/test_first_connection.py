"""A program that pushes before its broker is there waits for it, as long as a push waits for one that was lost."""

import asyncio

import pytest

from tests.ojs.proxy import Proxy
from waybill.client import AuthenticationFailed, ConnectFailed, NotAllowed
from waybill.ojs import BatchFailed, InvalidJob, Jobs, NewJob, PushFailed

NOBODY = "amqp://guest:guest@127.0.0.1:1/%2F"


async def test_the_first_push_waits_until_the_broker_is_there(
    broker_uri: str, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Proxy(broker_uri) as proxy:
        proxy.refusing = True
        jobs = Jobs(proxy.uri)
        pushing = [asyncio.ensure_future(jobs.push("a.b", [number], queue=queue_name)) for number in range(3)]
        while "waits up to 60 s for the broker" not in caplog.text:
            await asyncio.sleep(0.01)
        assert not any(one.done() for one in pushing)
        proxy.refusing = False
        assert [(await one).envelope.args for one in pushing] == [[0], [1], [2]]
        await jobs.close()


async def test_a_push_without_a_broker_fails_in_time_and_says_where_it_looked() -> None:
    jobs = Jobs(NOBODY, push_timeout=0.1)
    with pytest.raises(PushFailed, match=r"cannot be reached: amqp://127\.0\.0\.1:1") as failed:
        await jobs.push("a.b")
    assert (type(failed.value), failed.value.code) == (PushFailed, "BACKEND_UNAVAILABLE")
    with pytest.raises(BatchFailed) as batch:
        await jobs.push_many([NewJob("a.b", [number], {}) for number in range(3)])
    assert [one.code for one in batch.value.failures] == ["BACKEND_UNAVAILABLE"] * 3
    with pytest.raises(InvalidJob):
        await jobs.push("No Type")
    assert await jobs.push_many([]) == []
    with pytest.raises(ConnectFailed):
        await jobs.__aenter__()


def test_a_thread_is_told_in_the_same_way() -> None:
    jobs = Jobs(NOBODY, push_timeout=0.1)
    with pytest.raises(PushFailed, match=r"127\.0\.0\.1:1"):
        jobs.sync.push("a.b")
    jobs.sync.close()


async def test_what_another_try_would_not_change_is_raised_at_once(waybill_uri: str) -> None:
    with pytest.raises(AuthenticationFailed):
        await Jobs(waybill_uri.replace("guest:guest@", "guest:wrong@")).push("a.b")
    with pytest.raises(NotAllowed):
        await Jobs(waybill_uri.replace("%2Fojs", "nobody-has-it")).push("a.b")
