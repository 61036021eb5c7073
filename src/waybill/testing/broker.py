"""A real broker for tests: quick to start, with a clock, network and disk that the test controls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from copy import deepcopy
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from waybill.broker import Broker, Clock
from waybill.client import BasicProperties, connect
from waybill.client.loop_thread import LoopThread
from waybill.node.node import Filesystem, Node
from waybill.ojs import Jobs, State, Topology
from waybill.ojs.sync.background import started
from waybill.testing.enqueued import EnqueuedJob, jobs_of
from waybill.testing.network import Network
from waybill.testing.simulated_disk import SimulatedDisk

T = TypeVar("T")

HOST: Final = "127.0.0.1"
VIRTUAL_HOST: Final = "/ojs"
PERSISTENT: Final = 2
POLL_SECONDS: Final = 0.005
ALMOST_FULL_BYTES: Final = 32 << 20
"""Below the disk alarm, but more than a test writes."""


class TestBroker:
    """A new, empty broker.

        with TestBroker() as broker:
            with broker.serving(shop.jobs):
                place_order()
            broker.assert_enqueued("email.send", args=["ada@example.com"])

    It runs in its own thread, so blocking code, threads and any event loop can use it, with any AMQP 0-9-1
    client. Its methods may be called from any other thread. It is the real broker, except that its disk is in memory,
    its clock can be moved, and clients connect through a network that can be broken.
    """

    __test__ = False
    """Tells pytest not to collect this class."""

    def __init__(self, *, topology: Topology | None = None, seed: int = 0) -> None:
        """`topology`: the names for `jobs` and the assertions. `seed` decides what a power failure leaves on disk."""
        self.topology = topology or Topology()
        self._random = Random(seed)  # noqa: S311 - tests must be repeatable
        self._disk: SimulatedDisk | None = None
        self._clock = _MovableClock()
        self._thread: LoopThread | None = None
        self._broker: _Broker | None = None
        self._network = Network(HOST)

    # --- lifecycle ---

    def start(self) -> None:
        """Start it."""
        self._thread = LoopThread()
        try:
            self._thread.call(self._start())
        except BaseException:
            self._thread.stop()
            raise

    def stop(self) -> None:
        """Stop it. A second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.call(self._stop())
            finally:
                thread.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def uri(self, virtual_host: str = VIRTUAL_HOST) -> str:
        """The URI for clients. It disables heartbeats, since moving the clock would look like a dead peer."""
        path = virtual_host.replace("/", "%2F")
        return f"amqp://guest:guest@{HOST}:{self._network.port}/{path}?heartbeat=0"

    @contextlib.contextmanager
    def serving(self, jobs: Jobs) -> Iterator[Jobs]:
        """Connect the `Jobs` of a program to this broker in a `with` block. It must not be connected before."""
        before, jobs.uri = jobs.uri, self.uri()
        was_remote = jobs.broker_substitute is not None and jobs.broker_substitute.is_remote
        if was_remote:
            jobs.begin_anew()
        try:
            yield jobs
        finally:
            jobs.uri = before
            if was_remote:
                jobs.begin_anew()
            in_background = started()
            if in_background is not None:
                # Else the connection of `push_sync` would try to reconnect to this broker forever.
                in_background.forget(jobs)

    # --- queues and jobs ---

    def jobs(self, queue: str = "default", *, state: State | str | None = None) -> list[EnqueuedJob]:
        """The available, scheduled, retryable and dead jobs of a queue, without running ones."""
        wanted = None if state is None else State(state)
        found = self._do(lambda broker: jobs_of(broker.node, VIRTUAL_HOST, self.topology, queue))
        return [job for job in found if wanted in {None, job.state}]

    def queues(self) -> list[str]:
        """The OJS queues that have been declared."""
        pattern = self.topology.dead_letter_queue("")
        names = self._do(lambda broker: list(broker.node.virtual_hosts[VIRTUAL_HOST].queues))
        return sorted(name.removeprefix(pattern) for name in names if name.startswith(pattern))

    def message_count(self, queue: str, virtual_host: str = VIRTUAL_HOST) -> int:
        """How many messages wait in an AMQP queue. Raises KeyError if there is none."""
        return self._do(lambda broker: broker.node.virtual_hosts[virtual_host].queues[queue].message_count)

    def assert_enqueued(
        self,
        job_type: str,
        *,
        args: list[object] | None = None,
        queue: str | None = None,
        state: State | str | None = None,
        count: int | None = None,
    ) -> list[EnqueuedJob]:
        """Return the matching jobs, of all queues or of one. Raises AssertionError, which lists the jobs found.

        There must be at least one, or exactly `count`.
        """
        all_jobs = [job for name in ([queue] if queue is not None else self.queues()) for job in self.jobs(name)]
        wanted = None if state is None else State(state)
        found = [
            job
            for job in all_jobs
            if job.type == job_type and (args is None or job.args == args) and wanted in {None, job.state}
        ]
        if len(found) != count if count is not None else not found:
            expected = f"{'a job' if count is None else f'{count} jobs'} {job_type}"
            expected += f" with {args}" if args is not None else ""
            there = "\n".join(f"  {job.type} {job.args} in {job.queue}, {job.state.value}" for job in all_jobs)
            raise AssertionError(f"expected {expected}, found {len(found)}:\n{there or '  nothing'}")
        return found

    def assert_not_enqueued(self, job_type: str, *, queue: str | None = None) -> None:
        """Assert that there is no matching job, in all queues or in one."""
        self.assert_enqueued(job_type, queue=queue, count=0)

    # --- time ---

    def advance(self, seconds: float) -> None:
        """Move the broker's clock forward: delays, retries and times to live expire in order.

        Only the broker's clock moves. Times that clients compute, such as `expires_at`, do not.
        """
        self._ask(self._advance(seconds))

    # --- faults ---

    def drop_connections(self) -> int:
        """Reset all connections, like a broken network. Returns how many. Clients can reconnect."""
        return self._do(lambda _: self._network.cut())

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        """Reset all connections and refuse new ones in a `with` block."""

        def refuse(_broker: _Broker) -> None:
            self._network.is_refusing = True
            self._network.cut()

        self._do(refuse)
        try:
            yield
        finally:
            self._network.is_refusing = False

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Stall all traffic in a `with` block; connections stay open."""
        self._do(lambda _: self._network.stall())
        try:
            yield
        finally:
            self._do(lambda _: self._network.flow())

    @contextlib.contextmanager
    def delayed(self, seconds: float) -> Iterator[None]:
        """Delay all traffic by `seconds` in each direction, in a `with` block."""
        self._network.latency_s = seconds
        try:
            yield
        finally:
            self._network.latency_s = 0.0

    def duplicate(self, queue: str = "default") -> int:
        """Duplicate each job of a queue, as a lost confirm or a crash can. Returns how many.

        Workers must cope: delivery is at least once.
        """
        return sum(self._ask(self._duplicate(name)) for name in self.topology.job_queues(queue))

    def fill_disk(self) -> None:
        """Leave the disk almost full: the broker blocks publishers (connection.blocked)."""
        self._do(lambda broker: self._set_capacity(broker, 0))

    def free_disk(self) -> None:
        """End `fill_disk`."""
        self._do(lambda broker: self._set_capacity(broker, 1 << 40))

    def crash(self, *, lose_power: bool = False) -> None:
        """Kill the broker, and restart it with the same disk and port.

        `lose_power` drops data that was written but not synced. Confirmed messages survive this, too.
        """
        self._ask(self._crash(lose_power=lose_power))

    # --- on the broker's thread ---

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            question.close()
            raise RuntimeError("the broker is not running")
        return self._thread.call(question)

    def _do(self, action: Callable[[_Broker], T]) -> T:
        async def act() -> T:
            return action(self._running)

        return self._ask(act())

    @property
    def _running(self) -> _Broker:
        if self._broker is None:
            raise RuntimeError("the broker is not running")
        return self._broker

    @property
    def _storage(self) -> SimulatedDisk:
        if self._disk is None:
            raise RuntimeError("the broker is not running")
        return self._disk

    async def _start(self) -> None:
        if self._disk is None:
            self._disk = await _new_disk(self._random)
        self._broker = _Broker(self._disk, self._clock)
        await self._broker.start()
        await self._network.start(self._broker.port)

    async def _stop(self) -> None:
        await self._network.stop()
        if self._broker is not None:
            await self._broker.stop()
            self._broker = None

    async def _advance(self, seconds: float) -> None:
        broker = self._running
        target = self._clock.now() + seconds
        while (at := broker.node.next_timeout()) is not None and at <= target:
            self._clock.move(max(0.0, at - self._clock.now()))
            await broker.catch_up()
        self._clock.move(max(0.0, target - self._clock.now()))
        await broker.catch_up()

    async def _duplicate(self, queue: str) -> int:
        count = 0
        async with connect(self._running.uri(VIRTUAL_HOST)) as connection:
            channel = await connection.channel(confirms=True)
            for _ in range((await channel.declare_queue(queue, passive=True)).message_count):
                delivery = await channel.get(queue)
                if delivery is None:
                    break
                properties: BasicProperties = delivery.properties
                for _ in range(2):
                    await channel.publish(delivery.body, routing_key=queue, properties=properties, mandatory=True)
                delivery.ack()
                count += 1
        return count

    def _set_capacity(self, broker: _Broker, room: int) -> None:
        disk = self._storage
        disk.capacity = 1 << 40
        if not room:
            # Just enough to continue: the test should see an alarm, not a full disk.
            used = (1 << 40) - disk.free_space()
            disk.capacity = used + ALMOST_FULL_BYTES
        broker.look_at_disk()

    async def _crash(self, *, lose_power: bool) -> None:
        await self._network.stop()
        await self._running.die()
        if lose_power:
            self._storage.lose_power()
        else:
            self._storage.kill()
        await self._start()


_formatted: SimulatedDisk | None = None


async def _new_disk(random: Random) -> SimulatedDisk:
    """A disk with an empty store, made once per process, because hashing the password of guest is slow."""
    global _formatted  # noqa: PLW0603 - a cache; threads may fill it twice with the same value
    if _formatted is None:
        disk = SimulatedDisk(Random(0))  # noqa: S311 - never used
        broker = _Broker(disk, Clock())
        await broker.start()
        await broker.stop()
        disk.kill()
        _formatted = disk
    copy = deepcopy(_formatted)
    copy.random = random
    return copy


class _MovableClock(Clock):
    """The real clock with an offset."""

    __slots__ = ()

    def move(self, seconds: float) -> None:
        self._offset_s += seconds


class _Broker(Broker):
    """A broker on a simulated disk."""

    def __init__(self, disk: SimulatedDisk, clock: Clock) -> None:
        super().__init__(host=HOST, port=0, clock=clock)
        self._simulated_disk = disk

    @property
    def node(self) -> Node:
        return self._node

    def _open_filesystem(self) -> Filesystem | None:
        return self._simulated_disk

    async def catch_up(self) -> None:
        """Fire due timers, and return when their results are written."""
        self._commit_loop.catch_up()
        await self._commit_loop.settle()
        await asyncio.sleep(0)

    def look_at_disk(self) -> None:
        self._node.maintain(self._clock.now())
        self._commit_loop.after_receive()

    async def die(self) -> None:
        """Stop like a killed process: nothing more is written, sent or confirmed."""
        self._failure = Killed()
        self._commit_loop.stop()
        self._abort_all()
        await self.stop()


class Killed(Exception):
    """The test killed the broker."""


async def until(condition: Callable[[], bool], *, timeout: float = 10.0) -> None:  # noqa: ASYNC109 - a test has no cancel scope
    """Return when `condition` holds. Raises AssertionError if it does not within `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            while not condition():  # noqa: ASYNC110 - the condition is the user's
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise AssertionError(f"the condition did not become true within {timeout:g} s") from None
