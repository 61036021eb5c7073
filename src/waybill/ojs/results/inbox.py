"""The waiting side of results: a reply queue of this process, and the jobs that it waits for.

A job that was pushed here names the queue, so its worker sends the outcome there. For other jobs, and for long ones, a
coordinator is asked: it answers over the same queue after the job has ended. Requests are only repeated after a lost
connection, because answers may be lost, and every few minutes, so that coordinators can forget old requests.

The queue survives a lost connection for a short time; after the process has ended, the broker deletes it as unused.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakValueDictionary

from waybill.client import Channel, ChannelClosed, ClientError, Consumer, Delivery
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.control.control import Control
from waybill.ojs.coordinator.policy import OWN_REPLY
from waybill.ojs.errors import ControlFailed
from waybill.ojs.results.errors import ResultTimeout
from waybill.ojs.results.outcome import Outcome, read_outcomes
from waybill.ojs.spec.control_message import MAX_WAITED, WAIT, WaitRequest
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.topology.topology import Declaration

UNUSED_MS: Final = 120_000
"""How long the broker keeps the unused queue."""
PREFETCH: Final = 1000
OPEN_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 2.0
ASK_AFTER_SECONDS: Final = 2.0
"""When to ask a coordinator for a job pushed here: a cancelled job may never reach a worker."""
ASK_AGAIN_SECONDS: Final = 300.0
HOLD_SECONDS: Final = 330.0
"""How long a coordinator remembers a request."""
POLL_SECONDS: Final = 0.5

_log = logging.getLogger("waybill.ojs.client")


class Handle(Protocol):
    """Receives an outcome: a `Job`."""

    id: str
    outcome: Outcome | None


class _Wait:
    """A job whose end is awaited."""

    __slots__ = ("due_at", "futures")

    def __init__(self, due_at: float) -> None:
        self.futures: list[asyncio.Future[Outcome]] = []
        self.due_at = due_at
        """When to ask a coordinator, by the loop's clock."""


class Inbox:
    """Receives the outcomes of jobs over one connection."""

    def __init__(self, broker: BrokerConnection, control: Control) -> None:
        """Nothing is declared before `open`."""
        self.broker = broker
        self.reply_to: str | None = None
        """The reply queue for pushed jobs, None if there is none."""
        self._control = control
        self._channel: Channel | None = None
        self._consumer: Consumer | None = None
        self._opening = asyncio.Lock()
        self._is_refused = False
        self._handles: WeakValueDictionary[str, Handle] = WeakValueDictionary()
        self._waits: dict[str, _Wait] = {}
        self._loop = asyncio.get_running_loop()
        self._looking: asyncio.TimerHandle | None = None
        self._asking: set[asyncio.Task[None]] = set()
        broker.connection.on_reconnect(self._ask_anew)

    async def open(self) -> str | None:
        """Ensure that the queue exists; return its name, None if the broker refuses it."""
        if self.reply_to is None and not self._is_refused and self.broker.connection.is_open:
            async with self._opening:
                if self.reply_to is None and not self._is_refused:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(OPEN_SECONDS):
                            await self._declare()
        return self.reply_to

    async def close(self) -> None:
        """Delete the queue. Waiters get an error."""
        if self._looking is not None:
            self._looking.cancel()
        for task in list(self._asking):
            task.cancel()
        channel, consumer = self._channel, self._consumer
        self._channel = self._consumer = None
        for wait in self._waits.values():
            for future in wait.futures:
                if not future.done():
                    future.set_exception(ControlFailed("the Jobs object was closed"))
        if (
            channel is not None
            and consumer is not None
            and self.reply_to is not None
            and self.broker.connection.is_open
        ):
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await consumer.cancel()
                    await channel.delete_queue(self.reply_to)
            except (ClientError, TimeoutError) as error:
                # The broker deletes it when it expires.
                _log.debug("the reply queue was not deleted; it expires by itself: %r", error)

    def expect(self, handle: Handle) -> None:
        """Store the outcome of a job that will be pushed, as long as its handle is referenced."""
        self._handles[handle.id] = handle

    async def outcome(self, handle: Handle, timeout_seconds: float | None) -> Outcome:
        """Wait for the end of a job. Raises ResultTimeout."""
        if handle.outcome is not None:
            return handle.outcome
        is_expected = self._handles.get(handle.id) is handle
        self._handles[handle.id] = handle
        future: asyncio.Future[Outcome] = self._loop.create_future()
        wait = self._waits.get(handle.id)
        if wait is None:
            delay = ASK_AFTER_SECONDS if is_expected else 0.0
            wait = self._waits[handle.id] = _Wait(self._loop.time() + delay)
            self._look_within(POLL_SECONDS if is_expected else 0.0)
        wait.futures.append(future)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await future
        except TimeoutError:
            raise ResultTimeout(handle.id, f"it has not ended within {timeout_seconds:g} s") from None
        finally:
            wait.futures.remove(future)
            if not wait.futures and self._waits.get(handle.id) is wait:
                del self._waits[handle.id]

    # --- the queue ---

    async def _declare(self) -> None:
        topology = self.broker.declarer.topology
        user = self.broker.identity.user
        name = None
        try:
            channel = await self.broker.connection.channel(confirms=False, prefetch_count=PREFETCH)
            if user is None or topology.declaration is Declaration.NEVER:
                # Its name cannot be guessed, so coordinators accept it without a check. It ends with the connection.
                declared = await channel.declare_queue(exclusive=True, auto_delete=True)
                name = declared.name
            else:
                name = f"{topology.prefix}{OWN_REPLY.format(user=user)}{new_id()}"
                arguments: dict[str, object] = {"x-queue-type": "classic", "x-expires": UNUSED_MS}
                await channel.declare_queue(name, durable=True, arguments=arguments)
            self._consumer = await channel.consume(name, self._take)
        except ClientError as error:
            _log.warning("could not create a reply queue; asking coordinators for results instead: %s", error)
            # Errors of a lost connection are retried.
            self._is_refused = isinstance(error, ChannelClosed)
            return
        self._channel = channel
        self.reply_to = name

    def _take(self, delivery: Delivery) -> None:
        delivery.ack()
        try:
            outcomes = read_outcomes(delivery.body)
        except Exception as error:  # noqa: BLE001 - no message may end this loop
            _log.warning("invalid message in the reply queue, skipped: %s", type(error).__name__)
            return
        for outcome in outcomes:
            handle = self._handles.pop(outcome.id, None)
            if handle is not None:
                handle.outcome = outcome
            wait = self._waits.pop(outcome.id, None)
            if wait is not None:
                for future in wait.futures:
                    if not future.done():
                        future.set_result(outcome)

    # --- requests ---

    def _ask_anew(self) -> None:
        """Ask again after a lost connection: requests and answers may be lost."""
        if self.reply_to is not None:
            self.reply_to = self.broker.connection.current_queue_name(self.reply_to)
        now = self._loop.time()
        for wait in self._waits.values():
            wait.due_at = now
        if self._waits:
            self._look_within(0.0)

    def _look_within(self, seconds: float) -> None:
        """Check by then which jobs to ask for."""
        looking = self._looking
        at = self._loop.time() + seconds
        if looking is not None and looking.when() <= at:
            return
        if looking is not None:
            looking.cancel()
        self._looking = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        self._looking = None
        now = self._loop.time()
        due = []
        for job_id, wait in self._waits.items():
            if wait.due_at <= now:
                wait.due_at = now + ASK_AGAIN_SECONDS
                due.append(job_id)
        for start in range(0, len(due), MAX_WAITED):
            task = self._loop.create_task(self._ask(due[start : start + MAX_WAITED]))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        if self._waits:
            self._look_within(POLL_SECONDS)

    async def _ask(self, job_ids: list[str]) -> None:
        """Ask a coordinator to report the ends of some jobs."""
        try:
            reply_to = await self.open()
            if reply_to is not None:
                request = WaitRequest(job_ids=job_ids, hold_seconds=HOLD_SECONDS)
                await self._control.send(WAIT, request, reply_to, int(HOLD_SECONDS * 1000))
        except (ClientError, ControlFailed) as error:
            # The request is repeated after a reconnect.
            _log.warning("could not ask a coordinator for the results of %d jobs: %s", len(job_ids), error)
