"""A server that asks for patience gets it: requests wait as long as its Retry-After says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from waybill.http.answer import ANSWER_SECONDS, Answer, read_seconds
from waybill.http.control import HttpControl
from waybill.http.fetching import Fetching
from waybill.http.push import HttpPush
from waybill.http.settlement import HttpSettlement
from waybill.ojs.errors import PushFailed
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.spec.envelope import Envelope

REFUSED = msgspec.json.encode({"error": {"code": "rate_limited", "message": "Slowly.", "retryable": True}})


class Busy:
    """A server that refuses the first requests."""

    def __init__(self, count: int, seconds: float = 7.5) -> None:
        self.left = count
        self.seconds = seconds
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = ANSWER_SECONDS,
    ) -> Answer:
        self.paths.append(path)
        self.headers.append(dict(headers or {}))
        if self.left:
            self.left -= 1
            return Answer(429, REFUSED, self.seconds)
        return Answer(201, body or b"{}")

    async def close(self) -> None:
        pass


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was slept; no time passes."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)
        if len(found) > 5:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


def outgoing(count: int) -> list[Outgoing]:
    envelopes = [Envelope(id=f"019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e{one:02x}", type="a.b") for one in range(count)]
    return [
        cast("Outgoing", SimpleNamespace(envelope=one, idempotency_key=None, may_be_there=False, has_new_id=True))
        for one in envelopes
    ]


@pytest.mark.parametrize("count", [1, 3])
async def test_a_push_waits_and_stays_one_request(slept: list[float], count: int) -> None:
    server = Busy(2)
    outcomes = await HttpPush(server, 60.0, None).run(outgoing(count))
    assert not [one for one in outcomes if isinstance(one, PushFailed)]
    assert (len(server.paths), len(set(server.paths)), slept) == (3, 1, [7.5, 7.5])
    told = [one["X-Waybill-Repeated"] for one in server.headers]
    assert told == (["false", "true", "true"] if count == 1 else ["false"] * 3), "a batch goes again job by job"


async def test_a_push_without_time_to_wait_fails(slept: list[float]) -> None:
    server = Busy(9, 3600.0)
    outcomes = await HttpPush(server, 60.0, None).run(outgoing(3))
    assert [one.code for one in outcomes if isinstance(one, PushFailed)] == ["RATE_LIMITED"] * 3
    assert (len(server.paths), slept) == (1, [])


async def test_a_fetch_waits(slept: list[float]) -> None:
    nothing: Any = None
    fetching = Fetching(HttpControl(Busy(9)), nothing, nothing, "w", {"email": 1}, lambda: 1, asyncio.Event())
    with pytest.raises(asyncio.CancelledError):
        await fetching.fetch_for_ever()
    assert min(slept) >= 7.5


@pytest.mark.plain_source
async def test_an_outcome_waits(slept: list[float]) -> None:
    settlement = object.__new__(HttpSettlement)
    settlement._requests = HttpControl(Busy(2))
    await settlement._told_at_last("/ojs/v1/workers/ack", {"job_id": "1"})
    assert (len(slept), min(slept) >= 7.5) == (2, True)


def test_what_a_header_says() -> None:
    texts = ["7", "0.5", None, "Fri, 27 Nov 2026 15:00:00 GMT", "-1", "1e3", "٣", "9" * 99]
    assert [read_seconds(one) for one in texts] == [7.0, 0.5, *[None] * 6]
