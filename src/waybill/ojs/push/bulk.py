"""Pushes tables of jobs without a pause: while it waits for confirms, it sends the next jobs.

A job that is pushed individually is an object with an envelope: checked, stamped, encoded. The jobs of a table are
already valid, and those of one kind differ in their ids, their arguments and their idempotency keys. So a message is
these values between bytes that all jobs of the kind share, and confirms are handled for some hundred jobs at once. Only
a job with a problem becomes an object, and takes the usual way.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from typing import Final

from waybill.client import ConnectionLost, MessageNacked, MessageReturned, RequestTimeout
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.errors import PushFailed
from waybill.ojs.handler import NewJob, Options
from waybill.ojs.observe.event_forms import is_plain
from waybill.ojs.push.blocked_timeout import BlockedTimeout
from waybill.ojs.push.new_envelope import envelope_of, stamp
from waybill.ojs.push.outgoing import WINDOW, Outgoing, forget, nacks_pass, record
from waybill.ojs.push.template import SHARED_OPTIONS, PushTemplate
from waybill.ojs.spec.envelope import Envelope, read_envelope, validate
from waybill.ojs.spec.envelope_size import MAX_ENVELOPE_BYTES
from waybill.ojs.spec.headers import PushEncoder
from waybill.ojs.spec.timestamps import format_timestamp

_JOBS_PER_SEGMENT: Final = 250
_TRACE_OCTETS: Final = 16
_SPAN_OCTETS: Final = 8

Message = tuple[bytes, bytes]
"""Body and encoded properties."""
Form = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]
"""The parts of a body around id and arguments; the parts of the properties around two times traceparent, key and id."""


class TableFailed(PushFailed):
    """Some jobs of the tables were not enqueued. `failures` has their indexes, counted over all tables, in order."""

    def __init__(self, failures: Sequence[tuple[int, PushFailed]]) -> None:
        """The code is that of the first failure."""
        first = failures[0][1]
        super().__init__(first.job_id, first.code, f"{len(failures)} of the jobs of a table failed")
        self.failures = failures


class JobKind:
    """The common part of jobs of one type, queue, priority and policy; made by `Jobs.kind`."""

    def __init__(self, prototype: Envelope, encoder: PushEncoder) -> None:
        """`prototype` is a valid envelope with its state; its id, arguments and times are ignored."""
        self.prototype = prototype
        self.queue = prototype.queue
        self._template = PushTemplate(prototype)
        self._encoder = encoder
        self._time = ""
        self._forms: dict[int, Form] = {}
        around = sum(map(len, self._template.around(format_timestamp(datetime.now(UTC)))))
        self.args_bytes = MAX_ENVELOPE_BYTES - around - len(prototype.id)
        """The maximum length of a job's arguments as JSON."""

    def form(self, time: str, key_length: int) -> Form:
        """Return the common parts of jobs with this time whose keys have this length in bytes."""
        if time != self._time:
            self._time = time
            self._forms.clear()
        found = self._forms.get(key_length)
        if found is None:
            properties = self._encoder.around(self.prototype, time, key_length)
            found = self._forms[key_length] = (*self._template.around(time), *properties)
        return found


def make_kind(job_type: str, options: Options, encoder: PushEncoder) -> JobKind:
    """See `Jobs.kind`."""
    if not options.keys() <= SHARED_OPTIONS:
        raise ValueError(f"jobs of a bulk push cannot share {', '.join(options.keys() - SHARED_OPTIONS)}")
    now = datetime.now(UTC)
    prototype = envelope_of(NewJob(job_type, [], options), now)
    validate(prototype, now)
    stamp(prototype, now)
    return JobKind(prototype, encoder)


@dataclass(frozen=True, slots=True)
class JobTable:
    """Jobs in columns of equal length. They must be valid; they are not checked again.

    `args` has JSON arrays in UTF-8, `keys` the idempotency keys.
    """

    kinds: Sequence[JobKind]
    ids: Sequence[str]
    args: Sequence[bytes]
    keys: Sequence[str]

    def part(self, start: int, end: int) -> JobTable:
        """Return a slice of the jobs."""
        return JobTable(self.kinds[start:end], self.ids[start:end], self.args[start:end], self.keys[start:end])

    def messages(self, time: str) -> Iterator[Message]:
        """Yield the messages of the jobs. Each starts a trace."""
        octets = os.urandom(len(self.ids) * (_TRACE_OCTETS + _SPAN_OCTETS)).hex().encode()
        start = 0
        last, length = None, -1
        for kind, job_id, args, text in zip(self.kinds, self.ids, self.args, self.keys, strict=True):
            key = text.encode()
            identity = key if text is job_id else job_id.encode()
            if kind is not last or len(key) != length:
                last, length = kind, len(key)
                head, middle, tail, first, second, third, fourth, rest = kind.form(time, length)
            between, end = start + _TRACE_OCTETS * 2, start + (_TRACE_OCTETS + _SPAN_OCTETS) * 2
            trace = b"00-%b-%b-00" % (octets[start:between], octets[between:end])
            start = end
            yield (
                b"".join((head, identity, middle, args, tail)),
                b"".join((first, trace, second, trace, third, key, fourth, identity, rest)),
            )


@dataclass(slots=True)
class _Segment:
    """Jobs that were published together. `first` is the index of the first one in the whole push."""

    first: int
    table: JobTable
    time: str
    messages: list[Message]
    futures: list[asyncio.Future[None]]


class BulkPush:
    """A push of tables, in order; made by `Jobs.bulk`. It ends with `finish`, or with the first error."""

    def __init__(
        self,
        broker: BrokerConnection,
        blocked_timeout: BlockedTimeout,
        declare: Callable[[list[Envelope]], Awaitable[None]],
        push_again: Callable[[list[Outgoing]], Awaitable[list[PushFailed]]],
    ) -> None:
        """`declare` declares the queues of envelopes, `push_again` pushes a job the usual way."""
        self._broker = broker
        self._blocked_timeout = blocked_timeout
        self._declare = declare
        self._push_again = push_again
        self._exchange = broker.declarer.topology.direct
        self._declared: set[str] = set()
        self._published_count = 0
        self._unconfirmed_count = 0
        self._next_id = ""
        self._segments: deque[_Segment] = deque()
        self._failures: dict[int, PushFailed] = {}
        self._events_before: asyncio.Event | None = None

    async def push(self, table: JobTable) -> None:
        """Publish the jobs of a table; return while some of them still wait for their confirms.

        Raises TableFailed for jobs of this table or an earlier one, once all published jobs have ended. Jobs that were
        lost with a connection are published again, so they may arrive twice, with one id.
        """
        async with self._watched():
            await self._declare_new(table.kinds)
            for start in range(0, len(table.ids), _JOBS_PER_SEGMENT):
                self._next_id = table.ids[start]
                await self._broker.publishing.drain()
                self._publish(table.part(start, start + _JOBS_PER_SEGMENT))
                while self._unconfirmed_count > WINDOW:
                    await self._settle()
        await self._wait_for_events()

    async def finish(self) -> int:
        """Wait for all published jobs; return how many jobs were enqueued. Raises TableFailed."""
        async with self._watched():
            await self._settle_all()
        return self._published_count

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """Raise TableFailed at the end if jobs have failed; after another error, stop waiting for confirms."""
        try:
            try:
                async with self._blocked_timeout.limit():
                    yield
                    if self._failures:
                        await self._settle_all()
            except TimeoutError:
                self._give_up(self._blocked_timeout.reason)
            self._check()
        except BaseException:
            for segment in self._segments:
                forget(segment.futures)
            self._segments.clear()
            raise

    def _check(self) -> None:
        """Raise TableFailed if jobs have failed."""
        if self._failures:
            raise TableFailed(sorted(self._failures.items(), key=itemgetter(0)))

    async def _declare_new(self, kinds: Sequence[JobKind]) -> None:
        new = {kind.queue: kind.prototype for kind in set(kinds) if kind.queue not in self._declared}
        if new:
            await self._declare(list(new.values()))
            self._declared.update(new)

    def _publish(self, table: JobTable) -> None:
        publish, exchange = self._broker.publishing.publish_nowait, self._exchange
        time = format_timestamp(datetime.now(UTC))
        messages = list(table.messages(time))
        futures = [
            publish(body, exchange=exchange, routing_key=kind.queue, properties=properties, mandatory=True)
            for kind, (body, properties) in zip(table.kinds, messages, strict=True)
        ]
        self._segments.append(_Segment(self._published_count, table, time, messages, futures))
        self._published_count += len(futures)
        self._unconfirmed_count += len(futures)

    async def _settle_all(self) -> None:
        while self._segments:
            await self._settle()

    async def _settle(self) -> None:
        """Wait for the confirms of the oldest segment, and handle jobs without one."""
        segment = self._segments[0]
        refused: set[int] = set()
        again: list[int] = []
        for index, future in enumerate(segment.futures):
            try:
                await future
            except (ConnectionLost, MessageReturned, RequestTimeout):
                again.append(index)
            except MessageNacked as error:
                if nacks_pass(self._broker.declarer.topology):
                    again.append(index)
                    continue
                refused.add(index)
                text = f"the queue refused it: {error}"
                self._failures[segment.first + index] = PushFailed(segment.table.ids[index], "QUEUE_FULL", text)
        if again:
            await self._settle_again(segment, again)
        self._segments.popleft()
        self._unconfirmed_count -= len(segment.futures)
        self._record(segment, refused.union(again))

    async def _settle_again(self, segment: _Segment, indexes: list[int]) -> None:
        """Push jobs of a segment the usual way, including their events."""
        places: dict[str, int] = {}
        jobs = []
        for index in indexes:
            body, properties = segment.messages[index]
            job = Outgoing(read_envelope(body), {}, None, segment.table.keys[index])
            job.body, job.properties, job.exchange, job.key = body, properties, self._exchange, job.envelope.queue
            jobs.append(job)
            places.setdefault(job.envelope.id, segment.first + index)
        self._failures |= {places[failed.job_id]: failed for failed in await self._push_again(jobs)}

    def _record(self, segment: _Segment, left_out: set[int]) -> None:
        """Write the events of confirmed jobs."""
        events, table, time = self._broker.events, segment.table, segment.time
        for index, (kind, job_id, key) in enumerate(zip(table.kinds, table.ids, table.keys, strict=True)):
            if index in left_out:
                continue
            if key is job_id or is_plain(key):
                common = kind.prototype
                events.record_enqueued(job_id, time, common.type, common.queue, common.priority, key)
            else:
                record(self._broker, Outgoing(read_envelope(segment.messages[index][0]), {}, None, key))

    async def _wait_for_events(self) -> None:
        """Wait until at most one table of events is unconfirmed."""
        before, self._events_before = self._events_before, asyncio.Event()
        self._broker.events.after(self._events_before.set)
        if before is not None:
            # The jobs are safe. Only the next jobs have to know whether the broker accepts publishes.
            with suppress(TimeoutError):
                async with self._blocked_timeout.limit():
                    await before.wait()

    def _give_up(self, reason: str) -> None:
        """Fail all jobs that are not confirmed, at least the next one."""
        failed: dict[int, str] = {}
        while self._segments:
            segment = self._segments.popleft()
            forget(segment.futures)
            left_out = {index for index, future in enumerate(segment.futures) if not _is_confirmed(future)}
            failed |= {segment.first + index: segment.table.ids[index] for index in left_out}
            self._record(segment, left_out)
        for place, job_id in (failed or {self._published_count: self._next_id}).items():
            self._failures.setdefault(place, PushFailed(job_id, "BACKEND_UNAVAILABLE", reason))


def _is_confirmed(future: asyncio.Future[None]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
