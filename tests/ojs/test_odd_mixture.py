"""A generator: odd jobs, events and requests in any order, beside good jobs. Each is settled once, and all goes on."""

import json
import os
from random import Random
from typing import Any

import pytest

from tests.ojs.control.test_control import state_of
from tests.ojs.eye import Eye, until
from waybill.ojs import Coordinator, Jobs, Retry, Topology, Worker

CASES = int(os.environ.get("ODD_CASES", "120"))
GOOD_EVERY = 10

ODD_TEXTS = ["", "a\0b", "\N{SNOWMAN}" * 300, "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "P999999999D"]
ODD_HEADERS: list[Any] = [None, "one", [], {"a": [1]}, True, -1, 2**31 - 1, 2**62]
ODD_NUMBERS = [-1, 0, 2**31, 2**63, 2**64, -(10**300), 10**300, 1e308, 0.5]
PARTS = [b"[" * 2000, b'"\\ud800"', b"NaN", b"1e400", b"9" * 5000, b"\xff", b"\xef\xbb\xbf", b"}", b",", b"null", b'"']

JOB = {
    "specversion": "1.0", "id": "1", "type": "odd.mixed", "queue": "q", "args": [], "meta": {}, "priority": 0,
    "timeout": 60, "expires_at": "2999-01-01T00:00:00Z", "created_at": "2026-01-01T00:00:00Z", "attempt": 0,
    "retry": {"max_attempts": 1, "initial_interval": "PT1S"}, "visibility_timeout": 60, "errors": [],
    "checkpoint": None,
}  # fmt: skip
EVENT = {
    "id": "evt_1", "type": "job.started", "source": "x", "time": "2026-01-01T00:00:00Z", "subject": "1",
    "data": {"job_type": "t", "queue": "q", "attempt": 1, "worker_id": "w", "visibility_ms": 1, "unique_key": "u",
             "states": ["active"], "period": "P1D", "progress_percent": 1, "checkpoint": {"state": 1}},
}  # fmt: skip
KINDS = ["job.started", "job.reserved", "job.enqueued", "job.heartbeat", "job.progress", "job.completed", "job.failed"]
REQUEST = {"job_id": "1", "worker_id": "w", "limit": 5, "reservation": {
    "job_type": "t", "unique_key": "u", "states": [], "on_conflict": "replace", "lease_seconds": 1}}  # fmt: skip
REQUESTS = ["cancel", "heartbeat", "info", "list", "reserve", "release", "look", "x"]


def odd_value(random: Random) -> Any:
    value: Any = random.choice([None, True, [], {}, random.choice(ODD_TEXTS), random.choice(ODD_NUMBERS)])
    for _ in range(random.choice([0, 0, 1, 100, 400])):
        value = [value]
    return value


def odd_body(random: Random, model: dict[str, Any]) -> bytes:
    """A valid message with some fields changed, and perhaps some octets."""
    fields = json.loads(json.dumps(model))
    for _ in range(random.randrange(3)):
        place = fields
        key = random.choice(list(place))
        if isinstance(place[key], dict) and place[key] and random.random() < 0.7:
            place = place[key]
            key = random.choice(list(place))
        place[key] = odd_value(random)
    body = json.dumps(fields).encode()
    if random.random() < 0.3:
        at = random.randrange(len(body))
        body = body[:at] + random.choice(PARTS) + body[at + random.randrange(3) :]
    return body


@pytest.mark.parametrize("seed", [1, 2])
async def test_odd_messages_in_any_order_are_settled_once(waybill_uri: str, queue_name: str, seed: int) -> None:
    random = Random(seed)
    topology = Topology(prefix=f"odd{seed}.{queue_name}.")
    eye = Eye(waybill_uri)
    async with Jobs(waybill_uri, topology=topology) as jobs:

        @jobs.handler("odd.good", queue=queue_name)
        async def good() -> None: ...

        @jobs.handler("odd.mixed", queue=queue_name, retry=Retry(max_attempts=1))
        async def mixed() -> None: ...

        async with Worker(jobs, concurrency=2) as worker, Coordinator(jobs, queues=[queue_name]):
            odd = 0
            for number in range(CASES):
                kind = random.choice(["job", "job", "event", "request"])
                if kind == "job":
                    odd += 1
                    headers = {"x-ojs-attempt": random.choice(ODD_HEADERS)} if random.random() < 0.2 else None
                    await eye.publish(topology.direct, queue_name, odd_body(random, JOB), headers=headers)
                elif kind == "event":
                    body = odd_body(random, EVENT | {"type": random.choice(KINDS)})
                    await eye.publish(topology.events, "job.started", body)
                else:
                    name = f"ojs.control.{random.choice(REQUESTS)}"
                    key = f"control.{queue_name}"
                    body = odd_body(random, REQUEST)
                    await eye.publish(topology.direct, key, body, type=name, reply_to="amq.gen-none")
                if number % GOOD_EVERY == 0:
                    last = await good.push()
            goods = len(range(0, CASES, GOOD_EVERY))
            await until(
                lambda: sum(worker.counts[end] for end in ("completed", "discarded", "cancelled")) == odd + goods
            )
            await state_of(jobs, last.id, queue_name, "completed")
            await until(lambda: worker.counters.unacked[queue_name] == 0)
            assert worker.held_count == 0
            assert worker.is_consuming
        assert await eye.count(topology.job_queue(queue_name)) == 0
        # One that starts later reads the same events.
        async with Coordinator(jobs, queues=[queue_name]):
            await state_of(jobs, last.id, queue_name, "completed")
    eye.close()
