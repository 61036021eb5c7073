"""The jobs in the dead letter queues, with filters (ojs-dead-letter section 9).

One request at a time reads a dead letter queue: it holds messages that others would not see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.errors import invalid, is_valid_queue_name
from waybill.backend.job_form import Form, form_of
from waybill.client import Inspector
from waybill.ojs.control.pauses import ASKED_AT_ONCE
from waybill.ojs.dead_letters import DeadJob
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.server_events import DeadLetterChanged, DeadLetterDeleted, DeadLetterRetried
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import parse_timestamp

MAX_SEARCHED: Final = 10_000
"""Dead letters of one queue."""
MAX_MISSING: Final = 1000
"""The maximum number of missing queues that one request asks the broker for."""

_FIELDS: Final = ("queue", "type", "error_type", "since", "until", "older_than", "search")


class DeadFilter(NamedTuple):
    """A filter of dead letters; empty fields match all."""

    queue: str = ""
    type: str = ""
    error_type: str = ""
    search: str = ""
    since: datetime | None = None
    until: datetime | None = None
    prefix: str = ""
    """The prefix of queue names."""

    def matches(self, form: Form) -> bool:
        """Whether a dead letter matches."""
        error = form.get("error")
        names = [error.get("type"), error.get("code")] if isinstance(error, dict) else []
        kind = str(form.get("type", ""))
        fits = kind.startswith(self.type[:-1]) if self.type.endswith("*") else self.type in {"", kind}
        if not fits or (self.error_type and self.error_type not in names):
            return False
        if self.search and self.search not in msgspec.json.encode(form.get("args", [])).decode():
            return False
        if self.since is None and self.until is None:
            return True
        try:
            died = parse_timestamp(str(form.get("discarded_at") or form.get("died_at")), "time")
        except InvalidJob:
            return False
        return (self.since is None or died >= self.since) and (self.until is None or died < self.until)


def filter_of(given: Mapping[str, object], prefix: str = "") -> DeadFilter:
    """Read a filter of a query or of a body. Raises RequestRefused."""
    found: dict[str, str] = {}
    for name in _FIELDS:
        value = given.get(name)
        if value is not None and not isinstance(value, str):
            raise invalid(name, "must be a string")
        found[name] = value or ""
    until = found["until"] or found["older_than"]
    return DeadFilter(
        found["queue"],
        found["type"],
        found["error_type"],
        found["search"],
        _time(found["since"], "since"),
        _time(until, "until" if found["until"] else "older_than"),
        prefix,
    )


class DeadLetterList:
    """The dead letters of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._missing: dict[str, int] = {}
        """The queues without a dead letter queue, each with the version of its counts when that was found out."""

    async def find(self, wanted: DeadFilter) -> list[Form]:
        """Return the matching dead letters, by queue and age, oldest first."""
        return [form for form in await self._all(wanted.queue, wanted.prefix) if wanted.matches(form)]

    async def one(self, queue: str, job_id: str) -> Form | None:
        """Return a dead letter, None if there is none."""
        async with self._backend.dead_letters(queue) as dead:
            found = [one for one in await dead.peek() if one.id == job_id]
        return (await self._forms(queue, found))[0] if found else None

    async def counts(self, prefix: str = "") -> dict[str, int]:
        """Return the number of dead letters of each queue that has some and whose name begins with `prefix`.

        Events may name queues that do not exist. A name without a dead letter queue is asked for again when there is
        news of its jobs; once MAX_MISSING were asked for, further names wait for the next call.
        """
        counted = await self._backend.job_counts()
        names = await self._backend.job_queues()
        versions = {name: counted.version_of(name) for name in names}
        self._missing = {name: seen for name, seen in self._missing.items() if versions.get(name) == seen}
        asked = [name for name in names if name.startswith(prefix) and name not in self._missing]
        asked.sort(key=self._backend.coordinates_queue, reverse=True)
        found: dict[str, int] = {}
        missing = 0
        # Each look takes a channel, of which a connection has 2,047.
        for start in range(0, len(asked), ASKED_AT_ONCE):
            some = asked[start : start + ASKED_AT_ONCE]
            counts = await asyncio.gather(*(self._count(name) for name in some))
            for name, count in zip(some, counts, strict=True):
                if count is None:
                    missing += 1
                    self._missing[name] = versions[name]
                elif count:
                    found[name] = count
            if missing >= MAX_MISSING:
                break
        return found

    async def all_of(self, queue: str) -> list[Form]:
        """Return the dead letters of one queue."""
        async with self._backend.dead_letters(queue) as dead:
            return await self._forms(queue, await dead.peek(MAX_SEARCHED))

    async def move(self, queue: str, changes: Mapping[str, Form], target: str) -> int:
        """Put the dead letters of these ids into another queue, each with its changes; returns how many were found."""
        async with self._backend.dead_letters(queue) as dead:
            return await dead.retry(changes, queue=target)

    async def retry(self, queue: str, ids: list[str], changes: Form | None = None, target: str | None = None) -> int:
        """Put dead letters back into their queue, or into `target`; returns how many were found. Raises InvalidJob."""
        folded = self._backend.folded([("job.enqueued", one) for one in ids[:MAX_SEARCHED]])
        async with self._backend.dead_letters(queue) as dead:
            if len(ids) > 1:
                done = await dead.retry(ids, changes=changes, queue=target)
            else:
                async with folded:
                    done = await dead.retry(ids, changes=changes, queue=target)
                    if not done:
                        self._backend.view.forget("job.enqueued", ids[0])
        self._tell(DeadLetterRetried, queue, ids, done)
        return done

    async def discard(self, queue: str, ids: list[str]) -> int:
        """Delete dead letters; returns how many were found."""
        async with self._backend.dead_letters(queue) as dead:
            done = await dead.discard(ids)
        self._tell(DeadLetterDeleted, queue, ids, done)
        return done

    def _tell(self, kind: type[DeadLetterChanged], queue: str, ids: Sequence[str], done: int) -> None:
        """Publish what an operator has done with dead letters, if all of them were there: else nobody knows which."""
        for job_id in ids if done == len(ids) else ():
            self._backend.broker.events.record(job_id, kind(queue=queue, job_id=job_id))

    async def _all(self, queue: str, prefix: str) -> list[Form]:
        if not is_valid_queue_name(queue) or (queue and not queue.startswith(prefix)):
            # A queue cannot have this name.
            return []
        counts = await self.counts(prefix) if not queue else {queue: await self.count(queue)}
        forms: list[Form] = []
        for name, count in sorted(counts.items()):
            if count:
                async with self._backend.dead_letters(name) as dead:
                    forms += await self._forms(name, await dead.peek(MAX_SEARCHED))
        return sorted(forms, key=key_of)

    async def count(self, queue: str) -> int:
        """Return the number of dead letters of a queue."""
        return await self._count(queue) or 0

    async def _count(self, queue: str) -> int | None:
        broker = self._backend.broker
        found = await Inspector(broker.connection).queue(broker.declarer.topology.dead_letter_queue(queue))
        return None if found is None else found.message_count

    async def _forms(self, queue: str, dead: list[DeadJob]) -> list[Form]:
        """Return dead letters as jobs, from the events if these are known, else from the message."""
        now = datetime.now(UTC)
        known = {one.info.id: one for one in await self._backend.view.details([one.id for one in dead])}
        forms = []
        for one in dead:
            # A message that is not a job may have any id.
            form: Form = {**(one.envelope or {}), "id": one.id, "type": one.type}
            found = known.get(one.id)
            if found is not None:
                known_form = form_of(found, now)
                if known_form.pop("args_known", True) is False:
                    del known_form["args"]
                form |= known_form
            form |= {"state": State.DISCARDED.value, "reason": one.reason, "died_at": one.died_at, "queue": queue}
            forms.append({name: value for name, value in form.items() if value is not None})
        return forms


def key_of(form: Form) -> str:
    """Return the sort key of a dead letter, which does not change while it exists."""
    return f"{form.get('queue')}/{form.get('died_at', '')}/{form['id']}"


def _time(text: str, field: str) -> datetime | None:
    if not text:
        return None
    try:
        return parse_timestamp(text, field)
    except InvalidJob:
        raise invalid(field, "must be an RFC 3339 time") from None
