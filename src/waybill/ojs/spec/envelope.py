"""The job envelope: its fields, its JSON and its rules (ojs-core section 5, ojs-json-format sections 3 and 8).

There are two parsers. `parse_envelope` is for callers' input: it is strict, and keeps unknown fields. `read_envelope`
is for deliveries of a broker: it is fast and lenient, so that a program that knows only the binding, and leaves out
`specversion`, can still push to our workers. To republish a delivered job, its JSON is edited (`edit_envelope`), so
unknown fields are never lost.
"""

from __future__ import annotations

import functools
import math
import re
from datetime import datetime, timedelta
from typing import Final

import msgspec

from waybill.ojs.errors import InvalidJob, JobTooLarge
from waybill.ojs.spec.envelope_size import check_delivered
from waybill.ojs.spec.identifiers import is_uuid7
from waybill.ojs.spec.nesting import MAX_CARRIED_NESTING, MAX_NESTING, is_nested_deeper
from waybill.ojs.spec.rate_limit import read_rate_limit
from waybill.ojs.spec.retry import DEFAULT_RETRY, Retry
from waybill.ojs.spec.timestamps import parse_timestamp, resolve_moment

SPECVERSION: Final = "1.0"
CONTENT_TYPE: Final = "application/openjobspec+json"
DEFAULT_TIMEOUT_SECONDS: Final = 1800
DEFAULT_VISIBILITY_SECONDS: Final = 60
MIN_VISIBILITY_SECONDS: Final = 2.0
"""A shorter time could not be distinguished from a pause of the event loop."""
MAX_ID_LENGTH: Final = 255
EARLY_SECONDS: Final = 60.0
MAX_DELAY_SECONDS: Final = 2**28 - 1
"""8.5 years: longer than this a broker does not delay a message. A job waits several times in a row then."""
MAX_ATTEMPT: Final = 2**31 - 1
MAX_TIMEOUT_SECONDS: Final = 10 * 365 * 86400
MAX_TYPE_LENGTH: Final = 255
MAX_QUEUE_LENGTH: Final = 128
MAX_META_BYTES: Final = 64 * 1024
MAX_TAGS_BYTES: Final = 16 * 1024
"""Tags are a header too, and all headers of a message have to fit into a frame."""
MAX_ARGS_DEPTH: Final = 64
MAX_ERRORS: Final = 25
"""How many failures an envelope remembers; the specification asks for at least 10."""
MAX_SAFE_INTEGER: Final = 2**53 - 1

RESERVED_QUEUE_PREFIXES: Final = ("dlx.", "control.", "retry.", "delay.")
"""A queue of such a name would have the AMQP name of an internal queue of another one."""

SYSTEM_MANAGED: Final = (
    "state", "attempt", "max_attempts", "created_at", "enqueued_at", "started_at", "completed_at", "cancelled_at",
    "discarded_at", "error", "errors", "result", "checkpoint",
)  # fmt: skip

_TYPE = re.compile(r"[a-z][a-z0-9_\-]*(\.[a-z][a-z0-9_\-]*)*")
_QUEUE = re.compile(r"[a-z0-9][a-z0-9\-.]*")
_FIELD_IN_MESSAGE = re.compile(r"^(.*) - at `\$\.?(.*)`$")
_PLAIN_TYPES: Final = frozenset({str, bool, type(None)})
_NAMES_REMEMBERED: Final = 1000


MAX_RESULT_TTL_SECONDS: Final = 10 * 366 * 86400
MAX_RESULT_BYTES: Final = 8 * 1024 * 1024


class ErrorRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One failed attempt, as the envelope and the events record it (ojs-errors section 6)."""

    type: str = "Error"
    message: str = ""
    code: str = "HANDLER_ERROR"
    retryable: bool | None = None
    attempt: int = 0
    occurred_at: str = ""
    backtrace: list[str] | None = None
    details: dict[str, object] | None = None
    timeout_kind: str | None = None
    """Of a job that exceeded a time limit: which one, and two times in seconds (ojs-timeouts section 8)."""
    limit_seconds: float | None = None
    elapsed_seconds: float | None = None


class Envelope(msgspec.Struct, kw_only=True, omit_defaults=True, dict=True):
    """A job. Times are RFC 3339 text with the offset that their author chose; `timeout` is in seconds."""

    id: str
    type: str
    queue: str = "default"
    args: list[object] = msgspec.field(default_factory=list)
    specversion: str = SPECVERSION
    meta: dict[str, object] = msgspec.field(default_factory=dict)
    priority: int = 0
    timeout: int | None = None
    timeout_ms: int | None = None
    scheduled_at: str | None = None
    delay_until: str | None = None
    expires_at: str | None = None
    retry: Retry | None = None
    unique: dict[str, object] | None = None
    schema: str | None = None
    visibility_timeout: int | None = None
    visibility_timeout_ms: int | None = None
    tags: list[str] = msgspec.field(default_factory=list)
    rate_limit: dict[str, object] | None = None
    state: str | None = None
    attempt: int = 0
    max_attempts: int | None = None
    created_at: str | None = None
    enqueued_at: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    cancelled_at: str | None = None
    discarded_at: str | None = None
    error: ErrorRecord | None = None
    errors: list[ErrorRecord] = msgspec.field(default_factory=list)
    result: object = None
    result_ttl: int | None = None
    """For how many seconds the result is kept (ojs-results section 6.1): 0 not at all, -1 forever."""
    result_size_limit: int | None = None
    checkpoint: object = None
    """What an earlier attempt has left (ojs-durable-execution section 6.1)."""
    total_timeout: object = None
    """Seconds (ojs-timeouts section 6), as the next three. Other programs may give these fields another meaning."""
    enqueue_ttl: object = None
    grace_period: object = None
    heartbeat_timeout: object = None
    workflow_id: str | None = None
    parent_results: dict[str, object] | None = None
    """What the steps before have returned (ojs-workflows section 7.1)."""

    @property
    def unknown(self) -> dict[str, object]:
        """The fields that this version does not know; `encode` writes them back."""
        unknown: dict[str, object] = self.__dict__.get("unknown_fields", {})
        return unknown

    @unknown.setter
    def unknown(self, fields: dict[str, object]) -> None:
        self.__dict__["unknown_fields"] = fields

    @property
    def given_retry(self) -> dict[str, object] | None:
        """The retry policy as its author wrote it; `encode` writes it back, with defaults and `PT5M` as they are.

        None if `retry` was set since.
        """
        given: tuple[Retry | None, dict[str, object] | None] = self.__dict__.get("given_retry_fields", (None, None))
        return given[1] if given[0] is self.retry else None

    @given_retry.setter
    def given_retry(self, fields: dict[str, object] | None) -> None:
        self.__dict__["given_retry_fields"] = self.retry, fields

    @property
    def is_duplicate(self) -> bool:
        """Whether a push did not enqueue this job, because one was there already: this is that one's id and state."""
        return bool(self.__dict__.get("duplicate", False))

    @is_duplicate.setter
    def is_duplicate(self, value: bool) -> None:
        self.__dict__["duplicate"] = value

    @property
    def policy(self) -> Retry:
        """The retry policy in force."""
        return DEFAULT_RETRY if self.retry is None else self.retry

    @property
    def visibility_seconds(self) -> float:
        """How long an attempt may run without a heartbeat before it is replaced."""
        seconds = _seconds(self.visibility_timeout, self.visibility_timeout_ms, DEFAULT_VISIBILITY_SECONDS)
        return max(seconds, MIN_VISIBILITY_SECONDS)

    @property
    def timeout_seconds(self) -> float:
        """How long one attempt may run; 0 in the envelope means the default of 30 minutes."""
        return _seconds(self.timeout, self.timeout_ms, DEFAULT_TIMEOUT_SECONDS)

    def encode(self) -> bytes:
        """Return the envelope as JSON. `specversion`, `queue` and `args` are always there, `attempt` is too."""
        known: dict[str, object] = msgspec.to_builtins(self)
        written = {
            "specversion": self.specversion, "id": self.id, "type": self.type, "queue": self.queue, "args": self.args,
            **known, "attempt": self.attempt, **self.unknown,
        }  # fmt: skip
        if self.given_retry is not None:
            written["retry"] = self.given_retry
        return msgspec.json.encode(written)


class _NoArgs(list[object]):
    """Stands for arguments that are missing."""


class Delivered(Envelope, kw_only=True, omit_defaults=True, dict=True):
    """A job as it was delivered: fields that must be there have no defaults that hide it if they are not."""

    specversion: str = ""
    args: list[object] = msgspec.field(default_factory=_NoArgs)


_decoder = msgspec.json.Decoder(Delivered)
_FIELDS: Final = frozenset(Envelope.__struct_fields__)


def read_envelope(body: bytes) -> Envelope:
    """Decode a delivered job. Unknown fields stay in `body` only.

    Raises InvalidJob naming the field, whatever the body is.
    """
    check_delivered(body)
    try:
        envelope = _decoder.decode(body)
    except RecursionError as error:
        raise _too_deep() from error
    except Exception as error:
        raise _as_invalid_job(error) from error
    if is_nested_deeper(body):
        raise _too_deep()
    if not 0 < len(envelope.id) <= MAX_ID_LENGTH:
        raise InvalidJob("id", f"is empty, or longer than {MAX_ID_LENGTH} characters")
    if not 0 < len(envelope.type) <= MAX_TYPE_LENGTH:
        raise InvalidJob("type", f"is empty, or longer than {MAX_TYPE_LENGTH} characters")
    return envelope


def check_required(envelope: Envelope, *, follows_binding: bool) -> None:
    """Refuse a delivered job that lacks what an envelope must have (ojs-core section 5.1). Raises InvalidJob.

    The publisher in the binding's own example (section 15.1) writes no `specversion`. So a job goes without one if its
    message has properties or headers of the binding: there is but one version.
    """
    if not envelope.specversion and follows_binding:
        envelope.specversion = SPECVERSION
    if not envelope.specversion:
        raise InvalidJob("specversion", "is missing")
    if envelope.specversion != SPECVERSION:
        raise InvalidJob("specversion", f"must be {SPECVERSION!r}, is {envelope.specversion!r}")
    if type(envelope.args) is _NoArgs:
        raise InvalidJob("args", "is missing", code="INVALID_ARGS")


def parse_envelope(source: bytes | dict[str, object], now: datetime) -> Envelope:
    """Make a valid envelope of a caller's JSON or dict, keeping unknown fields.

    System-managed fields of the caller are ignored (ojs-core section 5.3); relative times count from `now`. Raises
    InvalidJob naming the field.
    """
    try:
        raw = msgspec.json.decode(source, type=dict[str, object]) if isinstance(source, bytes) else dict(source)
        for field in SYSTEM_MANAGED:
            raw.pop(field, None)
        envelope = msgspec.convert(raw, Envelope)
        envelope.unknown = {name: value for name, value in raw.items() if name not in _FIELDS}
        given = raw.get("retry")
        envelope.given_retry = given if isinstance(given, dict) else None
        others = (envelope.unknown, envelope.unique, envelope.rate_limit, envelope.parent_results, given)
        if any(others) and is_nested_deeper(msgspec.json.encode(others), MAX_CARRIED_NESTING):
            raise _too_deep(MAX_CARRIED_NESTING)
    except RecursionError as error:
        raise _too_deep(MAX_CARRIED_NESTING) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _as_invalid_job(error) from error
    if "specversion" not in raw:
        raise InvalidJob("specversion", "is missing")
    if "args" not in raw:
        raise InvalidJob("args", "is missing", code="INVALID_ARGS")
    if envelope.delay_until is not None:
        envelope.scheduled_at = envelope.scheduled_at or envelope.delay_until
        envelope.delay_until = None
    validate(envelope, now)
    return envelope


def validate(envelope: Envelope, now: datetime) -> None:
    """Check all rules of an envelope that is about to be pushed, and make its relative times absolute.

    Raises InvalidJob naming the first field that breaks a rule.
    """
    if envelope.specversion != SPECVERSION:
        raise InvalidJob("specversion", f"must be {SPECVERSION!r}, is {envelope.specversion!r}")
    check_id(envelope.id)
    check_type(envelope.type)
    check_queue(envelope.queue)
    check_args(envelope.args)
    check_json(envelope.meta, "meta", "INVALID_METADATA")
    if envelope.meta and (size := len(msgspec.json.encode(envelope.meta))) > MAX_META_BYTES:
        raise JobTooLarge("meta", size, MAX_META_BYTES, code="METADATA_TOO_LARGE")
    if envelope.tags:
        check_tags(envelope.tags)
    for name in ("timeout", "timeout_ms", "visibility_timeout", "visibility_timeout_ms"):
        if (getattr(envelope, name) or 0) < 0:
            raise InvalidJob(name, "must not be negative")
    if envelope.result_ttl is not None and not -1 <= envelope.result_ttl <= MAX_RESULT_TTL_SECONDS:
        raise InvalidJob("result_ttl", f"must be from -1 to {MAX_RESULT_TTL_SECONDS}")
    if envelope.result_size_limit is not None and not 0 <= envelope.result_size_limit <= MAX_RESULT_BYTES:
        raise InvalidJob("result_size_limit", f"must be from 0 to {MAX_RESULT_BYTES}")
    if envelope.rate_limit is not None:
        read_rate_limit(envelope.rate_limit)
    if envelope.scheduled_at is not None:
        envelope.scheduled_at = resolve_moment(envelope.scheduled_at, "scheduled_at", now)
    if envelope.expires_at is not None:
        envelope.expires_at = resolve_moment(envelope.expires_at, "expires_at", now)


def check_id(job_id: str) -> None:
    """Raise InvalidJob unless this is a UUIDv7 in lower case."""
    if not is_uuid7(job_id):
        raise InvalidJob("id", f"{job_id!r} is not a UUIDv7 in lower case")


@functools.lru_cache(_NAMES_REMEMBERED)
def check_type(job_type: str) -> None:
    """Raise InvalidJob unless this is a job type: dot-separated, lower case, 255 characters at most."""
    if len(job_type) > MAX_TYPE_LENGTH:
        raise InvalidJob("type", f"is longer than {MAX_TYPE_LENGTH} characters", code="JOB_TYPE_TOO_LONG")
    if _TYPE.fullmatch(job_type) is None:
        raise InvalidJob("type", f"{job_type!r} is not dot-separated lower case", code="INVALID_JOB_TYPE")


@functools.lru_cache(_NAMES_REMEMBERED)
def check_queue(queue: str) -> None:
    """Raise InvalidJob unless this is the name of an OJS queue that does not collide with an internal one."""
    if len(queue) > MAX_QUEUE_LENGTH:
        raise InvalidJob("queue", f"is longer than {MAX_QUEUE_LENGTH} characters", code="QUEUE_NAME_TOO_LONG")
    if _QUEUE.fullmatch(queue) is None:
        raise InvalidJob("queue", f"{queue!r} is not lower case letters, digits, '-' and '.'", code="INVALID_QUEUE")
    if queue.startswith(RESERVED_QUEUE_PREFIXES):
        raise InvalidJob("queue", f"{queue!r} starts with a reserved prefix", code="INVALID_QUEUE")


def is_queue_name(queue: str) -> bool:
    """Whether a queue of jobs can have this name: anyone may publish events, which may name others."""
    try:
        check_queue(queue)
    except InvalidJob:
        return False
    return True


def check_tags(tags: list[str]) -> None:
    """Raise InvalidJob unless all tags have characters, and MAX_TAGS_BYTES at most together."""
    if not all(tags):
        raise InvalidJob(f"tags[{tags.index('')}]", "is empty")
    if len(",".join(tags).encode(errors="surrogatepass")) > MAX_TAGS_BYTES:
        raise InvalidJob("tags", f"are larger than {MAX_TAGS_BYTES} bytes together")


def check_args(args: list[object]) -> None:
    """Raise InvalidJob naming the first argument that is not JSON."""
    for index, argument in enumerate(args):
        kind = type(argument)
        if kind not in _PLAIN_TYPES and not (
            type(argument) is int and -MAX_SAFE_INTEGER <= argument <= MAX_SAFE_INTEGER
        ):
            check_json(argument, f"args[{index}]", "INVALID_ARGS")


def check_json(value: object, field: str, code: str, depth: int = 0) -> None:
    """Raise InvalidJob unless `value` is made of what JSON has, losslessly for every reader (sections 3.3 and 4.2)."""
    if depth == 0 and _is_plain_json(value, depth):
        return
    if depth > MAX_ARGS_DEPTH:
        raise InvalidJob(field, f"is nested deeper than {MAX_ARGS_DEPTH} levels", code=code)
    match value:
        case str() | bool() | None:
            return
        case int():
            if abs(value) > MAX_SAFE_INTEGER:
                raise InvalidJob(field, f"{value} does not fit 53 bits: send it as a string", code=code)
        case float():
            if not math.isfinite(value):
                raise InvalidJob(field, f"{value} is not a JSON number", code=code)
        case list() | tuple():
            for index, element in enumerate(value):
                check_json(element, f"{field}[{index}]", code, depth + 1)
        case dict():
            for key, element in value.items():
                if not isinstance(key, str):
                    raise InvalidJob(field, f"has a key that is not a string: {key!r}", code=code)
                check_json(element, f"{field}.{key}", code, depth + 1)
        case _:
            raise InvalidJob(field, f"{type(value).__name__} is not a JSON type", code=code)


def _is_plain_json(value: object, depth: int) -> bool:
    """Return whether `check_json` would find nothing: it only looks at types. False means unknown."""
    if type(value) is int:
        return -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER
    if type(value) in _PLAIN_TYPES:
        return True
    if depth >= MAX_ARGS_DEPTH:
        return False
    if type(value) is dict:
        for name, one in value.items():
            if type(name) is not str or not (type(one) in _PLAIN_TYPES or _is_plain_json(one, depth + 1)):
                return False
        return True
    if type(value) is list:
        return all(type(one) in _PLAIN_TYPES or _is_plain_json(one, depth + 1) for one in value)
    return type(value) is float and math.isfinite(value)


def edit_envelope(body: bytes, changes: dict[str, object]) -> bytes:
    """Return the envelope in `body` with some fields replaced; a value of None removes the field.

    All other fields, the unknown ones too, keep their values.
    """
    fields = msgspec.json.decode(body, type=dict[str, object])
    fields.update(changes)
    return msgspec.json.encode(
        {name: value for name, value in fields.items() if name not in changes or value is not None}
    )


def with_failure(errors: list[ErrorRecord], failure: ErrorRecord) -> list[ErrorRecord]:
    """Return the error history with one failure more, without the oldest beyond MAX_ERRORS."""
    return [*errors, failure][-MAX_ERRORS:]


def is_expired(envelope: Envelope, now: datetime) -> bool:
    """Return whether the deadline of a job that has not started has passed."""
    if envelope.expires_at is not None and parse_timestamp(envelope.expires_at, "expires_at") <= now:
        return True
    if envelope.enqueue_ttl is None:
        return False
    ends_at = ttl_end(envelope)
    return ends_at is not None and ends_at <= now


def ttl_end(envelope: Envelope) -> datetime | None:
    """Return by when the first attempt must start, None if there is no such time or the attempt has started."""
    return None if envelope.attempt > 0 else end_after_creation(envelope, envelope.enqueue_ttl)


def end_after_creation(envelope: Envelope, limit: object) -> datetime | None:
    """Return when a limit in seconds from the creation of a job ends, None if it is no such limit."""
    seconds = seconds_of(limit)
    if not seconds:
        return None
    try:
        return parse_timestamp(envelope.created_at or "", "created_at") + timedelta(seconds=seconds)
    except (InvalidJob, OverflowError):
        return None


def seconds_of(value: object) -> int:
    """Return a number of seconds above 0; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def seconds_until_scheduled(envelope: Envelope, now: datetime) -> float:
    """Return how long a job has to wait from now on; 0 for one that is due."""
    if envelope.scheduled_at is None:
        return 0.0
    wait: timedelta = parse_timestamp(envelope.scheduled_at, "scheduled_at") - now
    return max(0.0, wait.total_seconds())


def early_seconds(envelope: Envelope, now: datetime) -> float:
    """Return for how long a delivered job has to wait on that was scheduled later than a broker delays.

    0 for one whose time has come, or will within a minute, as two clocks are at work, and for all others: the broker's
    clock has decided.
    """
    if envelope.scheduled_at is None:
        return 0.0
    try:
        created_at = parse_timestamp(envelope.created_at or "", "created_at")
        if seconds_until_scheduled(envelope, created_at) <= MAX_DELAY_SECONDS:
            return 0.0
        seconds = seconds_until_scheduled(envelope, now)
    except InvalidJob:
        return 0.0
    return seconds if seconds > EARLY_SECONDS else 0.0


def _seconds(whole: int | None, milliseconds: int | None, default: int) -> float:
    """Return a time limit: the default if it is not above 0, and at most ten years."""
    if milliseconds is not None and milliseconds > 0:
        return min(milliseconds, MAX_TIMEOUT_SECONDS * 1000) / 1000
    return min(whole, MAX_TIMEOUT_SECONDS) if whole is not None and whole > 0 else default


def _too_deep(levels: int = MAX_NESTING) -> InvalidJob:
    return InvalidJob("body", f"is nested deeper than {levels} levels")


def _as_invalid_job(error: Exception) -> InvalidJob:
    if isinstance(error.__cause__, InvalidJob):
        return error.__cause__
    found = _FIELD_IN_MESSAGE.match(str(error))
    if found is not None:
        return InvalidJob(found[2] or "body", found[1])
    missing = re.match(r"Object missing required field `(.*)`", str(error))
    return InvalidJob(missing[1] if missing else "body", str(error))
