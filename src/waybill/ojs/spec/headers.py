"""The properties and headers of the AMQP message of a job, written and read (binding section 6).

The traceparent goes under both names, that of the specification and that of the web page, and either is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from waybill.client import BasicProperties, Delivery
from waybill.ojs.spec.envelope import CONTENT_TYPE, MAX_ATTEMPT, MAX_SAFE_INTEGER, Envelope, ErrorRecord
from waybill.ojs.spec.priority import message_priority
from waybill.ojs.spec.timestamps import parse_timestamp

PERSISTENT: Final = 2

QUEUE: Final = "x-ojs-queue"
ATTEMPT: Final = "x-ojs-attempt"
MAX_ATTEMPTS: Final = "x-ojs-max-attempts"
CREATED_AT: Final = "x-ojs-created-at"
ENQUEUED_AT: Final = "x-ojs-enqueued-at"
SCHEDULED_AT: Final = "x-ojs-scheduled-at"
EXPIRES_AT: Final = "x-ojs-expires-at"
TAGS: Final = "x-ojs-tags"
TRACE_ID: Final = "x-ojs-trace-id"
TRACEPARENT: Final = "x-ojs-traceparent"
TRACE_STATE: Final = "x-ojs-trace-state"
TRACE_PREVIOUS: Final = "x-ojs-trace-previous"
"""The traceparent of the attempt before, beside that of the push, which stays."""
IDEMPOTENCY_KEY: Final = "x-ojs-idempotency-key"
COPY: Final = "x-ojs-copy"
"""Of a job that may be pushed more than once, and runs once: which push this is."""
REPEATED: Final = "x-ojs-repeated"
"""Of a job that was published before, without a confirm: it may be in its queue twice."""
RUN: Final = "x-ojs-run"
"""Of a job that was a dead letter: how often it was retried."""
PLACE: Final = "x-ojs-unique-place"
"""Of a unique job that has a place at the broker: the fingerprint that names it."""
ERROR_MESSAGE: Final = "x-ojs-error-message"
ERROR_CODE: Final = "x-ojs-error-code"

MAX_ERROR_MESSAGE_LENGTH: Final = 1000
"""Headers are held in memory by brokers; the whole message is in the envelope's `errors`."""

_BROKER_HEADERS: Final = frozenset(
    {
        "x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
        "x-last-death-exchange", "x-last-death-queue", "x-last-death-reason", "x-delivery-count", "x-delay",
    }
)  # fmt: skip

# Placeholders that stand for values of their length and can be found in an encoded property list: neither a queue nor a
# job type can hold the characters of the last two, and no timestamp of the year 9876 is anything else.
_CREATED_AT: Final = "9876-12-31T23:59:59.123Z"
_ID: Final = "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"
_TRACEPARENT: Final = "FF-" + "F" * 32 + "-" + "F" * 16 + "-FF"
_MAX_TEMPLATES: Final = 500

_ENCODED_ATTEMPT: Final = bytes([len(ATTEMPT)]) + ATTEMPT.encode() + b"I"
_ENCODED_REPEATED: Final = bytes([len(REPEATED)]) + REPEATED.encode()
_ENCODED_RUN: Final = bytes([len(RUN)]) + RUN.encode() + b"I"
_ENCODED_MAX_ATTEMPTS: Final = bytes([len(MAX_ATTEMPTS)]) + MAX_ATTEMPTS.encode() + b"I"
_MESSAGE_ID_OR_TYPE: Final = 0x80 | 0x20
"""The bits of these properties in the second octet of the flags."""
_ENCODED_IDEMPOTENCY_KEY: Final = bytes([len(IDEMPOTENCY_KEY)]) + IDEMPOTENCY_KEY.encode() + b"S"
"""Length, name and type of the header in a field table; four octets follow."""


def push_properties(  # noqa: PLR0913 - one argument for each header, all by name
    envelope: Envelope,
    *,
    max_priority: int,
    traceparent: str,
    tracestate: str | None = None,
    idempotency_key: str | None = None,
    correlation_id: str | None = None,
    reply_to: str | None = None,
    expiration_ms: int | None = None,
    more_headers: Mapping[str, object] | None = None,
) -> BasicProperties:
    """Return the properties of a job that is pushed for the first time.

    `x-ojs-attempt` is the number that the attempt of this delivery will have, so it starts at 1, while the envelope's
    `attempt` counts the attempts that were started, so it starts at 0. `max_priority` is that of the job's queue.
    """
    headers = _envelope_headers(envelope, traceparent)
    if tracestate is not None:
        headers[TRACE_STATE] = tracestate
    if idempotency_key is not None:
        headers[IDEMPOTENCY_KEY] = idempotency_key
    if more_headers:
        headers |= more_headers
    return BasicProperties(
        content_type=CONTENT_TYPE,
        content_encoding="utf-8",
        headers=headers,
        delivery_mode=PERSISTENT,
        # A message without a priority sorts below all others on RabbitMQ, so it is set even for 0.
        priority=message_priority(envelope.priority, max_priority),
        correlation_id=correlation_id,
        reply_to=reply_to,
        message_id=envelope.id,
        timestamp=_unix_seconds(envelope.created_at or ""),
        type=envelope.type,
        app_id="ojs",
        expiration=None if expiration_ms is None else str(expiration_ms),
    )


def _envelope_headers(envelope: Envelope, traceparent: str) -> dict[str, object]:
    """Return the headers that every job has, and those that repeat fields of the envelope."""
    created_at = envelope.created_at or ""
    headers: dict[str, object] = {
        QUEUE: envelope.queue,
        ATTEMPT: 1,
        MAX_ATTEMPTS: min(envelope.policy.max_attempts, MAX_ATTEMPT),
        CREATED_AT: created_at,
        ENQUEUED_AT: envelope.enqueued_at or created_at,
        TRACE_ID: traceparent,
        TRACEPARENT: traceparent,
    }
    if envelope.scheduled_at is not None:
        headers[SCHEDULED_AT] = envelope.scheduled_at
    if envelope.expires_at is not None:
        headers[EXPIRES_AT] = envelope.expires_at
    if envelope.tags:
        headers[TAGS] = ",".join(envelope.tags)
    return headers


class PushEncoder:
    """Encodes the properties of many similar jobs quickly.

    Jobs of one queue, type, priority, policy, reply queue and length of the key have property lists that differ in 7
    places at most, each of fixed length. One is encoded with placeholders there, and cut at them; each job then is a
    join. Values of another length are encoded the ordinary way.
    """

    def __init__(self, max_priority: int) -> None:
        """`max_priority` is that of the job queues."""
        self._max_priority = max_priority
        self._templates: dict[tuple[str, str, int, int, int, str | None], list[bytes]] = {}
        self._created_at = ""
        self._timestamp = b""

    def encode(
        self, envelope: Envelope, traceparent: str, idempotency_key: str | None = None, reply_to: str | None = None
    ) -> bytes:
        """Return the encoded properties of a job without other optional headers that is due immediately."""
        created_at = envelope.created_at or ""
        if (
            len(created_at) != len(_CREATED_AT)
            or len(envelope.id) != len(_ID)
            or len(traceparent) != len(_TRACEPARENT)
            or envelope.enqueued_at != created_at
        ):
            return push_properties(
                envelope,
                max_priority=self._max_priority,
                traceparent=traceparent,
                idempotency_key=idempotency_key,
                reply_to=reply_to,
            ).encode()
        unique = b"" if idempotency_key is None else idempotency_key.encode()
        length = -1 if idempotency_key is None else len(unique)
        parts = self._parts(envelope, length, reply_to)
        timestamp = self._unix_time(created_at)
        created, trace = created_at.encode(), traceparent.encode()
        return b"".join(
            (
                parts[0], created, parts[1], created, parts[2], trace, parts[3], trace, parts[4], unique, parts[5],
                envelope.id.encode(), parts[6], timestamp, parts[7],
            )
        )  # fmt: skip

    def around(self, envelope: Envelope, time: str, key_length: int) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """Return the common part for jobs like this one that are created at one time, due immediately and have a key.

        The parts surround two times the traceparent, the key, which has that many bytes, and the id. `time` has
        milliseconds.
        """
        parts = self._parts(envelope, key_length)
        created = time.encode()
        before = b"".join((parts[0], created, parts[1], created, parts[2]))
        return before, parts[3], parts[4], parts[5], b"".join((parts[6], self._unix_time(time), parts[7]))

    def _parts(self, envelope: Envelope, key_length: int, reply_to: str | None = None) -> list[bytes]:
        key = (envelope.queue, envelope.type, envelope.priority, envelope.policy.max_attempts, key_length, reply_to)
        parts = self._templates.get(key)
        if parts is None:
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            parts = self._templates[key] = self._cut(envelope, key_length, reply_to)
        return parts

    def _unix_time(self, created_at: str) -> bytes:
        if created_at != self._created_at:
            self._created_at = created_at
            self._timestamp = _unix_seconds(created_at).to_bytes(8)
        return self._timestamp

    def _cut(self, envelope: Envelope, key_length: int, reply_to: str | None) -> list[bytes]:
        """Return the parts between the values; `key_length` is the idempotency key's in bytes, -1 for none."""
        template = Envelope(
            id=_ID,
            type=envelope.type,
            queue=envelope.queue,
            priority=envelope.priority,
            retry=envelope.retry,
            created_at=_CREATED_AT,
            enqueued_at=_CREATED_AT,
        )
        encoded = push_properties(
            template,
            max_priority=self._max_priority,
            traceparent=_TRACEPARENT,
            idempotency_key=None if key_length < 0 else "k" * key_length,
            reply_to=reply_to,
        ).encode()
        parts = []
        for text in (_CREATED_AT, _CREATED_AT, _TRACEPARENT, _TRACEPARENT):
            before, _, encoded = encoded.partition(text.encode())
            parts.append(before)
        # The key is the last header, so it follows here: length, name and type of the field, four octets, the key.
        start = 0 if key_length < 0 else len(_ENCODED_IDEMPOTENCY_KEY) + 4
        parts.append(encoded[:start])
        before, _, encoded = encoded[start + max(key_length, 0) :].partition(_ID.encode())
        between, _, rest = encoded.partition(_unix_seconds(_CREATED_AT).to_bytes(8))
        return [*parts, before, between, rest]


def _unix_seconds(created_at: str) -> int:
    return math.floor(parse_timestamp(created_at, "created_at").timestamp())


def kept_headers(headers: Mapping[str, object] | None) -> dict[str, object]:
    """Return the headers of a delivered job for its republication: all but those of its last publish.

    An `x-death` that came back with a message would make RabbitMQ take the second stay in one retry queue for a
    dead-letter cycle, and drop the job.
    """
    left_out = _BROKER_HEADERS | {REPEATED}
    return {name: value for name, value in (headers or {}).items() if name not in left_out}


def republish_properties(original: BasicProperties, headers: dict[str, object]) -> BasicProperties:
    """Return the properties of a delivered job with other headers.

    The expiration is left out: it was for the stay that is over, and would count again.
    """
    return BasicProperties(
        content_type=original.content_type or CONTENT_TYPE,
        content_encoding=original.content_encoding or "utf-8",
        headers=headers,
        delivery_mode=PERSISTENT,
        priority=original.priority,
        correlation_id=original.correlation_id,
        reply_to=original.reply_to,
        message_id=original.message_id,
        timestamp=original.timestamp,
        type=original.type,
        app_id=original.app_id,
    )


def requeue_properties(original: BasicProperties) -> BasicProperties:
    """Return the properties of a waiting job that is published again: none of its attempts has ended."""
    return republish_properties(original, kept_headers(original.headers))


def retry_headers(
    headers: Mapping[str, object] | None,
    *,
    queue: str,
    attempt: int,
    failure: ErrorRecord,
    is_redelivered: bool = False,
) -> dict[str, object]:
    """Return the headers for the attempt number `attempt` after a failure (binding section 8.3).

    With `is_redelivered`, a worker that had the job before has perhaps published this attempt, too.
    """
    kept = kept_headers(headers)
    if is_redelivered:
        kept[REPEATED] = True
    kept.setdefault(QUEUE, queue)
    kept[ATTEMPT] = min(attempt, MAX_ATTEMPT)
    kept[ERROR_MESSAGE] = failure.message[:MAX_ERROR_MESSAGE_LENGTH]
    kept[ERROR_CODE] = failure.code
    return kept


def attempt_number(encoded_properties: bytes, envelope: Envelope) -> int:
    """Return the number of the attempt that a delivery is for, 1 or more; the header rules, the envelope helps out."""
    attempt = _whole(encoded_properties, _ENCODED_ATTEMPT, ATTEMPT)
    if attempt is None or attempt <= 0:
        attempt = envelope.attempt + 1
    return attempt if 0 < attempt <= MAX_SAFE_INTEGER else min(max(attempt, 1), MAX_SAFE_INTEGER)


def as_repeated(properties: BasicProperties | bytes) -> bytes:
    """Return the encoded properties of a job that is published again because nothing was heard of the first time."""
    original = BasicProperties.decode(properties.encode() if isinstance(properties, BasicProperties) else properties)
    original.headers = {**(original.headers or {}), REPEATED: True}
    return original.encode()


def is_repeated(encoded_properties: bytes) -> bool:
    """Return whether a delivered job may be in its queue twice."""
    # `find`, here and below, takes a third of the time of `in`, which first raises and drops a TypeError for bytes.
    return encoded_properties.find(_ENCODED_REPEATED) >= 0


def run_number(encoded_properties: bytes) -> int | None:
    """Return how often a delivered job was a dead letter that was retried, None for never."""
    if encoded_properties.find(_ENCODED_RUN) < 0:
        return None
    return _whole(encoded_properties, _ENCODED_RUN, RUN)


def _whole(encoded_properties: bytes, mark: bytes, name: str) -> int | None:
    """Return an integer header, None if it is missing.

    It is found in the encoded property list without decoding the rest, because every delivery needs it.
    """
    at = encoded_properties.find(mark)
    if at >= 0:
        at += len(mark)
        return int.from_bytes(encoded_properties[at : at + 4], signed=True)
    header = (BasicProperties.decode(encoded_properties).headers or {}).get(name)
    return header if isinstance(header, int) else None


def follows_binding(encoded_properties: bytes) -> bool:
    """Return whether a delivery has any property or header of the binding (section 6), not only an envelope."""
    return encoded_properties[1] & _MESSAGE_ID_OR_TYPE != 0 or encoded_properties.find(b"x-ojs-") >= 0


def max_attempts(delivery: Delivery, envelope: Envelope) -> int:
    """Return how many attempts a delivered job has: by its policy, or by its header if the envelope has no policy."""
    if envelope.retry is None:
        header = _whole(delivery.encoded_properties, _ENCODED_MAX_ATTEMPTS, MAX_ATTEMPTS)
        if header is not None and header >= 0:
            return min(header, MAX_ATTEMPT)
    return min(envelope.policy.max_attempts, MAX_ATTEMPT)


def trace_context(headers: Mapping[str, object] | None) -> tuple[str | None, str | None]:
    """Return the traceparent and the tracestate of a delivery."""
    headers = headers or {}
    traceparent = headers.get(TRACE_ID) or headers.get(TRACEPARENT)
    tracestate = headers.get(TRACE_STATE)
    return (
        traceparent if isinstance(traceparent, str) else None,
        tracestate if isinstance(tracestate, str) else None,
    )
