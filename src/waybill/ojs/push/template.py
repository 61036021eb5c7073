"""The common part of many jobs, validated and encoded once, around the parts that differ.

A job with only its arguments set differs from the next one of its handler in its id, its arguments and its time. Its
envelope is a copy of a prototype's, and its JSON the prototype's with these three parts inserted.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from waybill.ojs.handler import NewJob, Options
from waybill.ojs.spec.envelope import Envelope, check_args, check_id, validate
from waybill.ojs.spec.identifiers import new_id

MAX_TEMPLATES: Final = 500
SHARED_OPTIONS: Final = frozenset(
    {
        *("queue", "priority", "retry", "timeout", "visibility_timeout", "workflow_id"),
        *("results", "result_ttl", "result_size_limit"),
    }
)
"""Options that are the same for all jobs of a handler; any other option rules out a template."""

_ID: Final = "019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6"
_ARGS: Final = "<args>"
_TIME: Final = "9876-12-31T23:59:59.123Z"

# Takes a quarter of the time of copy.copy; missing in msgspec's stubs.
_copy: Final[Callable[[Envelope], Envelope]] = Envelope.__copy__  # type: ignore[attr-defined]
_encode = msgspec.json.Encoder().encode


def cut_at_what_differs(prototype: Envelope, meta: dict[str, object] | None = None) -> list[bytes]:
    """Return the JSON of an envelope without its id, arguments and two times: the text before each, and the rest.

    `meta`, if given, is a value that stands for the metadata, which then differ as well.
    """
    marked = _copy(prototype)
    # A copy has the fields of the envelope only.
    marked.given_retry = prototype.given_retry
    marked.id, marked.args, marked.created_at, marked.enqueued_at = _ID, [_ARGS], _TIME, _TIME
    marks = [f'"{_ID}"', f'["{_ARGS}"]', f'"{_TIME}"', f'"{_TIME}"']
    if meta is not None:
        marked.meta = meta
        marks.insert(2, _encode(meta).decode())
    rest = marked.encode()
    pieces = []
    for mark in marks:
        before, _, rest = rest.partition(mark.encode())
        pieces.append(before)
    return [*pieces, rest]


class PushTemplate:
    """The common part of jobs that are due immediately."""

    def __init__(self, prototype: Envelope) -> None:
        """`prototype` is a valid envelope with its state; its id, arguments and times are ignored."""
        self._prototype = prototype
        cut = cut_at_what_differs(prototype)
        self._before_id, self._before_args, self._before_created, self._before_enqueued, self._rest = cut

    def envelope(self, args: list[object], time: str, job_id: str | None = None) -> Envelope:
        """Return the envelope of a new job. Raises InvalidJob for arguments that are not JSON and for a bad id."""
        check_args(args)
        if job_id is not None:
            check_id(job_id)
        envelope = _copy(self._prototype)
        envelope.id = job_id or new_id()
        envelope.args = args
        envelope.meta = {}
        envelope.tags = []
        envelope.errors = []
        envelope.created_at = envelope.enqueued_at = time
        return envelope

    def body(self, envelope: Envelope) -> bytes:
        """Return the JSON of an unchanged envelope of this template."""
        time = f'"{envelope.created_at}"'.encode()
        return b"".join(
            (
                self._before_id, f'"{envelope.id}"'.encode(), self._before_args, _encode(envelope.args),
                self._before_created, time, self._before_enqueued, time, self._rest,
            )
        )  # fmt: skip

    def around(self, time: str) -> tuple[bytes, bytes, bytes]:
        """Return the text before the id, between it and the array of arguments, and after that."""
        quoted = f'"{time}"'.encode()
        return (
            self._before_id + b'"',
            b'"' + self._before_args,
            b"".join((self._before_created, quoted, self._before_enqueued, quoted, self._rest)),
        )


class PushTemplates:
    """The templates of a client, by options object: all jobs of a handler share one."""

    def __init__(self) -> None:
        self._templates: dict[tuple[str, int], tuple[Options, dict[str, object], PushTemplate]] = {}

    def find(self, job: NewJob) -> PushTemplate | None:
        """Return the template of a job, None if none fits."""
        found = self._templates.get((job.type, id(job.options)))
        if found is None:
            return None
        options, copy, template = found
        # The template holds the options object, so its id cannot be reused; but it may have been changed.
        return template if options is job.options and copy == options else None

    def learn(self, job: NewJob, envelope: Envelope, now: datetime) -> None:
        """Make a template from a job and its finished envelope, if more such jobs may follow."""
        if not job.options.keys() <= SHARED_OPTIONS:
            return
        if len(self._templates) >= MAX_TEMPLATES:
            self._templates.clear()
        validate(envelope, now)
        template = PushTemplate(_copy(envelope))
        self._templates[job.type, id(job.options)] = (job.options, dict(job.options), template)
