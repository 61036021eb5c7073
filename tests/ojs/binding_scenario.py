"""One life of jobs with everything in it that the binding's conformance table speaks of, seen from the wire."""

import asyncio
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from prometheus_client import CollectorRegistry, generate_latest

from tests.ojs.eye import Eye, until
from tests.ojs.wire_tap import WireTap
from waybill.client import ReconnectPolicy, blocking
from waybill.ojs import Coordinator, Jobs, PushFailed, Retry, Topology, Worker
from waybill.ojs.observe.metrics import WorkerMetrics

QUEUE = "binding"
MISSING = "missing"
FULL = "full"
QUORUM = "quorum"
FIRST_DELAY_S = 0.05
RECONNECT = ReconnectPolicy(first_delay_s=FIRST_DELAY_S, max_delay_s=0.8, jitter=0.0)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
REFUSED_ATTEMPTS = 4


@dataclass
class Recording:
    """The tap, the ids of the jobs by what became of them, and what else was found."""

    tap: WireTap
    ids: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    metrics: str = ""
    threads: int = 0
    before_loss: int = 0
    """How many methods had passed when the connection was cut."""
    loss_at_attempt: int = 0
    before_cancel: int = 0
    """How many methods had passed when the queue was deleted."""


async def record(uri: str) -> Recording:
    """Play the scenario through a tap."""
    async with WireTap(uri) as tap:
        recording = Recording(tap)
        with patch("waybill.ojs.worker.attempt_heartbeats.HEARTBEAT_SECONDS", 0.1):
            await _live(recording, uri)
        await _fill_a_queue(recording)
        await _use_quorum_queues(recording)
        await asyncio.to_thread(_publish_in_threads, recording)
    return recording


async def _live(recording: Recording, uri: str) -> None:
    tap = recording.tap
    release, cancelled = asyncio.Event(), asyncio.Event()
    once = Retry(max_attempts=2, initial_interval=timedelta(milliseconds=1), jitter=False)
    async with Jobs(tap.uri, reconnect=RECONNECT, create_queues=True) as jobs:

        @jobs.handler("binding.do", queue=QUEUE, retry=once)
        async def do(what: str) -> None:
            if what == "discarded":
                raise ValueError(what)
            if what == "long":
                await release.wait()
            if what == "cancelled":
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()

        # They wait when the worker comes, so that their order is the broker's.
        for priority in (-100, 0, 100):
            recording.ids[f"priority {priority}"] = (await do.options(priority=priority).push("done")).id
        worker = Worker(jobs, queues=[QUEUE], concurrency=3)
        registry = CollectorRegistry()
        registry.register(WorkerMetrics(worker))
        async with Coordinator(jobs, queues=[QUEUE]), worker:
            for what in ("done", "discarded", "long", "cancelled"):
                job = await do.options(traceparent=TRACEPARENT, tags=["a", "b"]).push(what)
                recording.ids[what] = job.id
            recording.ids["scheduled"] = (await do.options(delay=timedelta(seconds=1.2)).push("done")).id
            await until(lambda: bool(_beats(tap)))
            await jobs.cancel(recording.ids["cancelled"], QUEUE)
            await asyncio.wait_for(cancelled.wait(), 20)
            found = await jobs.info(recording.ids["done"], QUEUE)
            assert found is not None
            await until(lambda: worker.counts["discarded"] == 1 and worker.counts["completed"] == 5)
            await until(lambda: worker.counters.acked[QUEUE] == 7)
            recording.metrics = generate_latest(registry).decode()
            await _push_to_nowhere(recording, jobs, uri)
            await _lose_connection(recording, worker)
            release.set()
            recording.before_cancel = len(tap.said)
            await _delete_queue(uri, f"ojs.queue.{QUEUE}")
            await until(lambda: _consumed_again(recording))
            recording.ids["after"] = (await do.push("done")).id
            await until(lambda: worker.counts["completed"] >= 6)


def _beats(tap: WireTap) -> list[Any]:
    return tap.by_client("Basic.Publish", lambda one: one.properties.type == "ojs.control.heartbeat")


def _consumed_again(recording: Recording) -> bool:
    later = recording.tap.said[recording.before_cancel :]
    return any(one.name == "Basic.Consume" and one.method.queue == f"ojs.queue.{QUEUE}" for one in later)


async def _push_to_nowhere(recording: Recording, jobs: Jobs, uri: str) -> None:
    """Push to a queue that is declared, and then unbound each time: the broker returns the job."""
    await jobs.push("binding.other", queue=MISSING)
    eye = Eye(uri)

    def unbind() -> None:
        eye.channel.queue_unbind(f"ojs.queue.{MISSING}", "ojs.exchange.direct", MISSING)

    try:
        await eye.call(unbind)
        with patch("waybill.ojs.topology.declarer.TopologyDeclarer.forget_queue"):
            await jobs.push("binding.other", queue=MISSING)
    except PushFailed as error:
        recording.errors["unroutable"] = error.code
        recording.ids["unroutable"] = error.job_id
    finally:
        await asyncio.to_thread(eye.close)


async def _lose_connection(recording: Recording, worker: Worker) -> None:
    tap = recording.tap
    recording.before_loss = len(tap.said)
    recording.loss_at_attempt = len(tap.attempts)
    tap.refusing = True
    tap.cut()
    # The client, the worker and the coordinator have a connection each.
    await until(lambda: len(tap.attempts) >= recording.loss_at_attempt + 3 * REFUSED_ATTEMPTS)
    tap.refusing = False
    await until(lambda: worker.is_consuming)


async def _delete_queue(uri: str, queue: str) -> None:
    eye = Eye(uri)
    await eye.call(lambda: eye.channel.queue_delete(queue))
    await asyncio.to_thread(eye.close)


async def _fill_a_queue(recording: Recording) -> None:
    async with Jobs(recording.tap.uri, topology=Topology(max_length=2)) as jobs:
        try:
            for _ in range(3):
                await jobs.push("binding.full", queue=FULL)
        except PushFailed as error:
            recording.errors["full"] = error.code


async def _use_quorum_queues(recording: Recording) -> None:
    async with Jobs(recording.tap.uri, topology=Topology(queue_type="quorum")) as jobs:
        recording.ids["quorum"] = (await jobs.push("binding.quorum", queue=QUORUM)).id


def _publish_in_threads(recording: Recording) -> None:
    """Two threads with a channel each on one connection, at the same time."""
    with blocking.connect(recording.tap.uri) as connection:
        barrier = threading.Barrier(2)

        def publish(number: int) -> None:
            with connection.channel() as channel:
                barrier.wait(20)
                for _ in range(20):
                    channel.publish(b"", routing_key=f"thread{number}")

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recording.threads = len(threads)
