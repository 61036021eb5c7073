"""Caches the validated and encoded options of jobs that share them, and assembles the text of each job.

A client may enqueue thousands of jobs that differ only in arguments and metadata. The other fields are checked and
encoded with the first of them, and compared octet for octet. The slow path, `enqueue` and the envelope's rules, is
authoritative.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.backend.enqueue import envelope_of, is_pending
from waybill.backend.errors import RequestRefused
from waybill.ojs.errors import InvalidJob
from waybill.ojs.push import template
from waybill.ojs.push.new_envelope import stamp
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.spec.envelope import MAX_META_BYTES, Envelope, check_json, parse_envelope

MAX_TEMPLATES: Final = 500
MAX_OPTIONS_BYTES: Final = 2048
_OPTIONS: Final = frozenset(
    {
        *("queue", "priority", "retry", "retry_policy"),
        *("timeout", "timeout_ms", "visibility_timeout", "visibility_timeout_ms"),
    }
)
_SHARED: Final = _OPTIONS | {"id", "specversion", "type", "args"}
_META: Final[dict[str, object]] = {"<meta>": 0}

_encode = msgspec.json.Encoder().encode


class RequestedJob(msgspec.Struct, forbid_unknown_fields=True):
    """The common form of a job. Jobs with other fields take the slow path."""

    type: str
    args: list[object]
    meta: dict[str, object] | None = None
    options: msgspec.Raw = msgspec.Raw(b"")
    queue: str | None = None


class RequestedJobs(msgspec.Struct, forbid_unknown_fields=True):
    """A batch of such jobs."""

    jobs: list[RequestedJob]


class RequestTemplate(template.PushTemplate):
    """The common part of such jobs."""

    def __init__(self, prototype: Envelope) -> None:
        """`prototype` is valid, stamped and without metadata; its id, arguments and times are ignored."""
        super().__init__(prototype)
        self.prototype = prototype
        self.queue = prototype.queue
        self._with_meta = template.cut_at_what_differs(prototype, _META)
        self._end = b"}" if prototype.priority else b',"priority":0}'

    def outgoing(self, job: RequestedJob, time: str) -> Outgoing:
        """Return a job with its encoded body. Raises InvalidJob."""
        envelope = self.envelope(job.args, time)
        one = Outgoing(envelope, {})
        if not job.meta:
            one.body = one.description = self.body(envelope)
            return one
        check_json(job.meta, "meta", "INVALID_METADATA")
        encoded = _encode(job.meta)
        if len(encoded) > MAX_META_BYTES:
            raise InvalidJob("meta", f"is larger than {MAX_META_BYTES} bytes", code="METADATA_TOO_LARGE")
        envelope.meta = job.meta
        quoted = f'"{time}"'.encode()
        before_id, before_args, before_meta, before_created, before_enqueued, rest = self._with_meta
        one.body = one.description = b"".join(
            (
                before_id, f'"{envelope.id}"'.encode(), before_args, _encode(job.args), before_meta, encoded,
                before_created, quoted, before_enqueued, quoted, rest,
            )
        )  # fmt: skip
        return one

    def form(self, one: Outgoing) -> bytes:
        """Return the response for a job, as JSON."""
        return one.body[:-1] + self._end


class RequestTemplates:
    """Caches the templates of jobs."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, bytes, str | None], RequestTemplate | None] = {}

    def find(self, job: RequestedJob) -> RequestTemplate | None:
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
        found = self._found[key] = _template_of(job, options, datetime.now(UTC))
        return found


def _template_of(job: RequestedJob, options: bytes, now: datetime) -> RequestTemplate | None:
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
    return RequestTemplate(envelope)
