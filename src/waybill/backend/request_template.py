"""Caches the validated and encoded options of jobs that share them, and assembles the text of each job.

A client may enqueue thousands of jobs that differ only in arguments and metadata. The other fields are checked and
encoded with the first of them, and compared octet for octet. The slow path, `enqueue` and the envelope's rules, is
authoritative.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.backend.enqueue import envelope_of, is_pending
from waybill.backend.errors import RequestRefused
from waybill.backend.usual_bodies import PlainJob, RequestedJob
from waybill.ojs.errors import InvalidJob, JobTooLarge
from waybill.ojs.push import template
from waybill.ojs.push.new_envelope import stamp
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.spec.envelope import (
    MAX_META_BYTES,
    Envelope,
    check_args,
    check_json,
    parse_envelope,
    read_envelope,
)
from waybill.ojs.spec.envelope_size import check_pushed
from waybill.ojs.spec.headers import PushEncoder
from waybill.ojs.spec.identifiers import new_id

MAX_TEMPLATES: Final = 500
MAX_OPTIONS_BYTES: Final = 2048
_OPTIONS: Final = frozenset(
    {
        *("queue", "priority", "retry", "retry_policy"),
        *("timeout", "timeout_ms", "visibility_timeout", "visibility_timeout_ms"),
    }
)
_SHARED: Final = _OPTIONS | {"id", "specversion", "type", "args"}
_TRACE_OCTETS: Final = 24
_META: Final[dict[str, object]] = {"<meta>": 0}

_encode = msgspec.json.Encoder().encode


class RequestTemplate(template.PushTemplate):
    """The part that jobs with the same options have in common."""

    def __init__(self, prototype: Envelope, encoder: PushEncoder) -> None:
        """`prototype` is valid, stamped and without metadata; its id, arguments and times are ignored."""
        super().__init__(prototype)
        self.type, self.queue, self.priority = prototype.type, prototype.queue, prototype.priority
        self.kind = self.type, self.queue, self.priority
        self._encoder = encoder
        self._with_meta = template.cut_at_what_differs(prototype, _META)
        self._end = b"}" if prototype.priority else b',"priority":0}'
        self._end_of_answer = self._end + b"}"
        self._time = ""
        self._before_id_text = self._before_id + b'"'
        self._before_args_text = b'"' + self._before_args
        self._before_meta = self._with_meta[2]
        self._end_of_body = self._end_of_body_with_meta = b""
        self._properties: tuple[bytes, bytes, bytes, bytes, bytes] = b"", b"", b"", b"", b""

    def message(self, job: RequestedJob | PlainJob, time: str) -> JobMessage:
        """Return the message of a new job. Raises InvalidJob."""
        if time != self._time:
            self._set_time(time)
        args, meta = job.args, job.meta
        if type(job) is RequestedJob:
            check_args(job.args)
            if meta:
                check_json(meta, "meta", "INVALID_METADATA")
        job_id = new_id()
        encoded_id = job_id.encode()
        if meta:
            encoded = _encode(meta)
            if len(encoded) > MAX_META_BYTES:
                raise JobTooLarge("meta", len(encoded), MAX_META_BYTES, code="METADATA_TOO_LARGE")
            pieces: tuple[bytes, ...] = (
                self._before_id_text, encoded_id, self._before_args_text, _encode(args),
                self._before_meta, encoded, self._end_of_body_with_meta,
            )  # fmt: skip
        else:
            pieces = self._before_id_text, encoded_id, self._before_args_text, _encode(args), self._end_of_body
        body = b"".join(pieces)
        check_pushed(body)
        return JobMessage(self, job_id, encoded_id, time, body, self._properties)

    def _set_time(self, time: str) -> None:
        """Assemble the parts that jobs of the same millisecond share."""
        self._time = time
        _, _, self._end_of_body = self.around(time)
        quoted = f'"{time}"'.encode()
        _, _, _, before_created, before_enqueued, rest = self._with_meta
        self._end_of_body_with_meta = b"".join((before_created, quoted, before_enqueued, quoted, rest))
        self._properties = self._encoder.around(self._prototype, time, -1)

    def form(self, body: bytes) -> bytes:
        """Return the response for a job, as JSON."""
        return body[:-1] + self._end

    def answer(self, body: bytes) -> bytes:
        """Return the answer to a request for one job: under `job` for the specification's clients, flat for others."""
        start = body[:-1]
        # Its closing brace comes at the end.
        return b"".join((start, self._end[:-1], b',"job":', start, self._end_of_answer))


class JobMessage:
    """The message of a new job: cheaper than an envelope, and sufficient for most jobs."""

    def __init__(
        self,
        template: RequestTemplate,
        job_id: str,
        encoded_id: bytes,
        time: str,
        body: bytes,
        properties: tuple[bytes, bytes, bytes, bytes, bytes],
    ) -> None:
        """`properties` are the parts between the values that differ: see `PushEncoder.around`."""
        self.template = template
        self.id = job_id
        self.encoded_id = encoded_id
        self.time = time
        self.body = body
        self._properties = properties

    def properties(self, traceparent: bytes) -> bytes:
        """Return the encoded properties of its message."""
        before, between, after, before_id, rest = self._properties
        return b"".join((before, traceparent, between, traceparent, after, before_id, self.encoded_id, rest))

    def outgoing(self) -> Outgoing:
        """Return the job for the usual way to push."""
        one = Outgoing(read_envelope(self.body), {})
        one.body = one.description = self.body
        return one


def traceparents(count: int) -> Sequence[bytes]:
    """Return new, unsampled W3C traceparents, each the root of a trace."""
    digits = os.urandom(count * _TRACE_OCTETS).hex().encode()
    size = 2 * _TRACE_OCTETS
    return [
        b"00-%b-%b-00" % (digits[start : start + 32], digits[start + 32 : start + size])
        for start in range(0, count * size, size)
    ]


class RequestTemplates:
    """Caches the templates of jobs."""

    def __init__(self, max_priority: int) -> None:
        """`max_priority` is that of the job queues."""
        self._encoder = PushEncoder(max_priority)
        self._found: dict[tuple[str, bytes, str | None], RequestTemplate | None] = {}

    def find(self, job: RequestedJob | PlainJob) -> RequestTemplate | None:
        """Return the template of a job, None if it must take the slow path, which also reports its errors."""
        options = bytes(job.options)
        if len(options) > MAX_OPTIONS_BYTES or (job.meta and "traceparent" in job.meta):
            return None
        key = job.type, options, job.queue
        try:
            return self._found[key]
        except KeyError:
            pass
        if len(self._found) >= MAX_TEMPLATES:
            self._found.clear()
        envelope = _prototype_of(job, options, datetime.now(UTC))
        found = self._found[key] = None if envelope is None else RequestTemplate(envelope, self._encoder)
        return found


def _prototype_of(job: RequestedJob | PlainJob, options: bytes, now: datetime) -> Envelope | None:
    body: dict[str, object] = {"type": job.type, "args": []}
    if job.queue is not None:
        body["queue"] = job.queue
    if options:
        decoded = body["options"] = msgspec.json.decode(options)
        if not isinstance(decoded, dict) or not decoded.keys() <= _OPTIONS:
            return None
    try:
        made = envelope_of(body)
        if is_pending(body) or not made.keys() <= _SHARED:
            return None
        envelope = parse_envelope(made, now)
    except (RequestRefused, InvalidJob):
        return None
    stamp(envelope, now)
    return envelope
