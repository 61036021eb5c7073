"""Made-up jobs, requests and events: worker and coordinator live, each job is settled, and the job behind them runs."""

import asyncio
from collections.abc import Callable
from typing import Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ojs.eye import until
from tests.ojs.worker.odd_messages import bodies, properties
from waybill.client import connect
from waybill.ojs import Coordinator, Jobs, Topology, Worker

JOB: Final[dict[str, object]] = {"specversion": "1.0", "type": "odd.known", "queue": "odd", "args": []}
FAILING: Final[dict[str, object]] = {**JOB, "type": "odd.fails"}
EVENT: Final[dict[str, object]] = {
    "specversion": "1.0",
    "id": "evt_odd",
    "type": "job.started",
    "source": "ojs://odd",
    "time": "2026-01-01T00:00:00Z",
    "subject": "018f0000-0000-7000-8000-000000000001",
    "data": {"job_type": "odd", "queue": "odd", "worker_id": "w", "attempt": 1},
}
REQUEST: Final[dict[str, object]] = {"job_id": "018f0000-0000-7000-8000-000000000001"}
KINDS: Final = ("job.started", "job.heartbeat", "job.progress", "job.completed", "job.reserved", "job.failed", "job.")
REQUESTS: Final = ("cancel", "heartbeat", "info", "list", "reserve", "release", "wait", "sync", "look", "admit", "odd")
Odd = list[tuple[str, bytes, bytes]]

jobs_made = st.sampled_from([JOB, FAILING]).flatmap(
    lambda one: st.tuples(st.just("job"), bodies("job", one), properties())
)
events_made = st.sampled_from(KINDS).flatmap(
    lambda kind: st.tuples(st.just(kind), bodies("event", {**EVENT, "type": kind}), properties())
)
requests_made = st.sampled_from(REQUESTS).flatmap(
    lambda kind: st.tuples(
        st.just("request"),
        bodies("request", REQUEST),
        properties(st.just(f"ojs.control.{kind}"), st.just("odd.answers")),
    )
)


async def _publish(uri: str, queue: str, odd: Odd) -> None:
    topology = Topology()
    async with connect(uri) as connection:
        channel = await connection.channel()
        for where, body, encoded in odd:
            match where:
                case "job":
                    route = ("ojs.exchange.direct", queue)
                case "request":
                    route = ("", topology.control_queue(queue))
                case _:
                    route = ("ojs.exchange.events", where)
            await channel.publish(body, exchange=route[0], routing_key=route[1], properties=encoded)


async def _drive(uri: str, queue: str, odd: Odd) -> None:
    async with Jobs(uri) as jobs:

        @jobs.handler("odd.known", queue=queue)
        async def known() -> None: ...

        @jobs.handler("odd.fails", queue=queue)
        async def fails() -> None:
            raise ValueError("odd")

        @jobs.handler("odd.last", queue=queue)
        async def last() -> int:
            return 1

        async with Coordinator(jobs, queues=[queue]), Worker(jobs, concurrency=2) as worker:
            await _publish(uri, queue, odd)
            assert await (await last.push()).result(60) == 1
            await until(lambda: worker.held_count == 0)
            assert worker.is_consuming
            assert worker.starvation is None
            # The coordinator still answers, and knows the job behind all events.
            job = await last.push()
            await job.result(60)
            assert await jobs.info(job.id, queue) is not None
        # What the worker had not settled would be in the queue again.
        async with connect(uri) as connection:
            channel = await connection.channel()
            assert (await channel.declare_queue(f"ojs.queue.{queue}", passive=True)).message_count == 0


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(odd=st.lists(st.one_of(jobs_made, jobs_made, events_made, requests_made), min_size=10, max_size=40))
def test_made_up_messages_stop_no_worker_and_no_coordinator(
    waybill_uri: str, queue_names: Callable[[], str], odd: Odd
) -> None:
    asyncio.run(_drive(waybill_uri, queue_names(), odd))
