"""Requests that wait for jobs keep nothing of their bodies."""

from __future__ import annotations

import asyncio
import gc

from tests.backend.conftest import Client
from waybill.backend.routes.workers import MAX_FETCH_BYTES


async def test_a_long_poll_keeps_nothing_of_its_body(client: Client) -> None:
    """Four hundred of a megabyte took 830 MB."""
    body = {"queues": ["email"], "worker_id": "w1", "wait_ms": 20_000, "more": ["mark of a long poll", *range(900)]}
    polls = [asyncio.ensure_future(client.ask("POST", "/ojs/v1/workers/fetch", body)) for _ in range(3)]
    await client.ask("POST", "/ojs/v1/workers/fetch", {"queues": ["email"]})
    await asyncio.sleep(0.05)
    del body["more"]
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, list) and one[:1] == ["mark of a long poll"]]
    for one in polls:
        one.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    large = {"queues": ["email"], "more": "x" * MAX_FETCH_BYTES}
    refused = await client.ask("POST", "/ojs/v1/workers/fetch", large, 413)
    assert refused["error"]["code"] == "payload_too_large"
