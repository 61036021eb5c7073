"""One way of a move between two brokers, under load, with kills of the command; and the count of the messages."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import msgspec

from tests.program_environment import program_environment
from waybill.client import BasicProperties, Connection, Delivery, connect
from waybill.move.stream_copy import MARK
from waybill.ojs import Jobs, NewJob, Topology
from waybill.ojs.spec.event_partitions import partition_of
from waybill.ojs.spec.events import ReceivedEvent, read_events
from waybill.ojs.topology.topology import LeaderLocator, QueueType

NAMES = Topology()
QUEUE = "soaked"
STILL_SECONDS = 600.0
"""Nothing may be still for so long. How long all of it takes depends on what else the machine does."""
EVERY = 20
"""Each 20th job is scheduled."""
DELAY_SECONDS = 8.0
END_SECONDS = 600.0


@dataclass(frozen=True)
class Place:
    """A broker, and the kind of its job queues.

    `context` is the name that the command knows a cluster by: only a context says how many replicas there are.
    `options` of the address are for the command only.
    """

    uri: str
    queue_type: QueueType = "classic"
    replicas: int | None = None
    context: str | None = None
    options: str = ""
    event_partitions: int = 1

    @property
    def command_uri(self) -> str:
        """Return what the command calls it."""
        return self.context or self.uri + self.options

    @property
    def topology(self) -> Topology:
        """Return the names of jobs there."""
        locator: LeaderLocator | None = None if self.replicas is None else "balanced"
        return replace(
            NAMES,
            queue_type=self.queue_type,
            replicas=self.replicas,
            leader_locator=locator,
            event_partitions=self.event_partitions,
        )

    @property
    def target_options(self) -> list[str]:
        """What tells the command to move there."""
        if self.context is not None:
            return ["--to", self.context]
        partitions = str(self.event_partitions)
        return [
            "--to", self.command_uri, "--to-queue-type", self.queue_type, "--to-event-partitions", partitions,
        ]  # fmt: skip


class WrongError(Exception):
    """Something was lost, came twice or out of order."""


class Taker:
    """Consumes the job queue of the target, and notes what comes."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.scheduled: list[int] = []
        self.early = 0
        self._seen: set[int] = set()

    @contextlib.asynccontextmanager
    async def taking(self, connection: Connection) -> AsyncIterator[None]:
        channel = await connection.channel(prefetch_count=200)
        consumer = await channel.consume(NAMES.job_queue(QUEUE), self._take)
        yield
        await consumer.cancel()
        await channel.close()

    def _take(self, delivery: Delivery) -> None:
        job = msgspec.json.decode(delivery.body)
        [number] = job["args"]
        if delivery.redelivered and number in self._seen:
            # The same message again: this connection was lost before the broker had its ack.
            delivery.ack()
            return
        self._seen.add(number)
        due = job.get("scheduled_at")
        if due is None:
            self.numbers.append(number)
        else:
            self.scheduled.append(number)
            self.early += datetime.fromisoformat(due) > datetime.now(UTC)
        delivery.ack()

    @property
    def count(self) -> int:
        return len(self.numbers) + len(self.scheduled)


class Mover:
    """`waybill move --follow` as a process."""

    def __init__(self, source: Place, target: Place, log: Path) -> None:
        ways = ["--from", source.command_uri, *target.target_options]
        self._command = [sys.executable, "-m", "waybill", "move", QUEUE, *ways]
        self._log = log.open("ab")
        self.process = self._start([*self._command, "--follow"])

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, env=program_environment(), stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL
        )

    def kill(self) -> None:
        """End it as a crash would, and start another."""
        self.process.kill()
        self.process.wait()
        self.process = self._start([*self._command, "--follow"])

    async def end(self) -> None:
        """Stop it, then run it to its end, as the how-to guide says. Raises WrongError unless that works."""
        self.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self.process.wait, END_SECONDS)
        # It may have been at its first connection, or without one: only the last run has to end well.
        self.process = self._start(self._command)
        code = await asyncio.to_thread(self.process.wait, END_SECONDS)
        if code:
            raise WrongError(f"waybill move ended with {code}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()


async def push(place: Place, first: int, count: int) -> None:
    """Push numbered jobs, one after the other in batches, while others look."""
    async with Jobs(place.uri, topology=place.topology, create_queues=True) as jobs:
        for start in range(first, first + count, 100):
            due = datetime.now(UTC) + timedelta(seconds=DELAY_SECONDS)
            made = [
                NewJob("soak.run", [number], {"queue": QUEUE, **({"scheduled_at": due} if number % EVERY == 0 else {})})
                for number in range(start, min(start + 100, first + count))
            ]
            await jobs.push_many(made)


async def until_count(taker: Taker, count: int, mover: Mover, pushing: asyncio.Task[None]) -> None:
    seen, deadline = -1, 0.0
    while taker.count < count:
        if taker.count > seen:
            seen, deadline = taker.count, time.monotonic() + STILL_SECONDS
        if time.monotonic() > deadline:
            raise WrongError(f"{taker.count} of {count} messages have come, and none for {STILL_SECONDS:.0f} s")
        if mover.process.poll() is not None:
            raise WrongError(f"waybill move has ended with {mover.process.returncode}")
        if pushing.done():
            pushing.result()
        await asyncio.sleep(0.05)


Disturb = Callable[[Mover, int], Awaitable[None]]
"""Kills or stops something, the n-th time."""


async def kill_mover(mover: Mover, _number: int) -> None:
    """Kill the command and start it again."""
    mover.kill()


@dataclass(frozen=True)
class Plan:
    """How many jobs are moved each way, and how often something is done to the move meanwhile."""

    jobs: int
    count: int
    chance: random.Random
    log: Path
    disturb: Disturb = kill_mover
    what: str = "kills"


async def one_way(source: Place, target: Place, first: int, plan: Plan) -> None:
    """Move jobs, numbered from `first` on, while they are pushed; raises WrongError."""
    numbers = range(first, first + plan.jobs)
    taker = Taker()
    async with connect(target.uri) as connection:
        async with await connection.channel() as channel:
            arguments = target.topology.job_queue_arguments(QUEUE)
            await channel.declare_queue(NAMES.job_queue(QUEUE), durable=True, arguments=arguments)
        mover = Mover(source, target, plan.log)
        try:
            async with taker.taking(connection):
                pushing = asyncio.create_task(push(source, numbers.start, len(numbers)))
                for number in range(plan.count):
                    await until_count(taker, plan.jobs * (number + 1) // (plan.count + 2), mover, pushing)
                    await asyncio.sleep(plan.chance.uniform(0, 0.5))
                    await plan.disturb(mover, number)
                await pushing
                await until_count(taker, len(numbers), mover, pushing)
                await mover.end()
        finally:
            mover.close()
        # RabbitMQ gives what a killed client had got from a quorum queue back in any order.
        check(taker, numbers, keeps_order=source.queue_type == "classic")
        await check_events(connection, numbers, target.topology)


def check(taker: Taker, numbers: range, *, keeps_order: bool = True) -> None:
    """Raise WrongError unless each came once, in order if that is kept."""
    twice = [number for number, count in Counter([*taker.numbers, *taker.scheduled]).items() if count > 1]
    if twice:
        raise WrongError(f"{len(twice)} messages came twice: {twice[:10]}")
    if {*taker.numbers, *taker.scheduled} != {*numbers}:
        raise WrongError(f"{len({*numbers} - {*taker.numbers, *taker.scheduled})} messages are lost")
    if keeps_order and taker.numbers != sorted(taker.numbers):
        raise WrongError("messages came out of order")
    if taker.early:
        raise WrongError(f"{taker.early} scheduled jobs came early")


async def check_events(connection: Connection, numbers: range, topology: Topology = NAMES) -> None:
    """Raise WrongError unless the streams of the target have each event once, and tell of all jobs of this way."""
    events: Counter[str] = Counter()
    told: set[str] = set()
    wanted = len(numbers)
    for partition, stream in enumerate(topology.event_streams):
        async for event in events_of(connection, stream):
            events[event.id] += 1
            if event.type == "job.enqueued":
                told.add(event.subject)
            if partition_of(event.type, event.subject, topology.event_partitions) != partition:
                raise WrongError(f"an event of {event.subject} is in {stream}")
    twice = sum(count > 1 for count in events.values())
    # The way back finds the jobs of both ways.
    if twice or len(told) not in {wanted, 2 * wanted}:
        raise WrongError(f"the stream tells of {len(told)} jobs, and {twice} events are there twice")


async def events_of(connection: Connection, stream: str) -> AsyncIterator[ReceivedEvent]:
    """Yield all events that are in a stream now, but not the marks of moves."""
    async with await connection.channel(prefetch_count=1000) as channel:
        end = BasicProperties(message_id=uuid4().hex, headers={MARK: "end"}, delivery_mode=2)
        # Behind all that the move has copied.
        await channel.publish(b"", routing_key=stream, properties=end, mandatory=True)
        consumer = await channel.consume(stream, arguments={"x-stream-offset": "first"})
        async for delivery in consumer:
            delivery.ack()
            if delivery.properties.message_id == end.message_id:
                break
            if MARK not in (delivery.properties.headers or {}):
                for event in read_events(delivery.body)[0]:
                    yield event
