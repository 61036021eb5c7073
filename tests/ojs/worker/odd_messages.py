"""Makes up messages that are jobs, requests or events by half: fields, headers and properties of any type and size."""

import json
from datetime import UTC, datetime
from decimal import Decimal

from hypothesis import strategies as st

from waybill.wire.amqp091.properties import BasicProperties

INTEGERS = st.sampled_from(
    [0, 1, -1, 127, 255, -(2**31), 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 10**20]
)
FLOATS = st.sampled_from([0.0, -0.0, 0.5, -1.5, 1e308, 5e-324, float("inf"), float("-inf"), float("nan")])
TIMES = st.sampled_from(
    [
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "1969-12-31T23:59:59Z",
        "2020-02-30T00:00:00Z",
        "9999-12-31T23:59:59.999999999Z",
        "9999-12-31T23:59:59-23:59",
        "10000-01-01T00:00:00Z",
        "2026-06-30T23:59:60Z",
        "now",
        "",
        "2026-01-01",
        "١٢٣٤-01-01T00:00:00Z",
    ]
)
TEXTS = st.sampled_from(
    ["", " ", "a", "\0", "\N{SNOWMAN}", "x" * 300, "y" * 40_000, "../..", "ojs.queue.#", "*", "1", "1e400"]
)
ATOMS = st.one_of(INTEGERS, FLOATS, TIMES, TEXTS, st.none(), st.booleans())


def _deep(levels: int) -> object:
    value: object = []
    for number in range(levels):
        value = [value] if number % 2 else {"a": value}
    return value


VALUES = st.one_of(
    ATOMS,
    st.lists(ATOMS, max_size=4),
    st.dictionaries(TEXTS, ATOMS, max_size=3),
    st.sampled_from([_deep(20), _deep(100), [[]] * 500, {str(n): n for n in range(300)}]),
)
_MARK = "@@not-utf-8@@"


def _encodable(value: object) -> object:
    """A field value for AMQP, which has limits of its own."""
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return Decimal(2**31 - 1).scaleb(-5)
    if isinstance(value, list):
        return [_encodable(one) for one in value][:50]
    if isinstance(value, dict):
        return {name[:100]: _encodable(one) for name, one in list(value.items())[:50]}
    return value


FIELD_VALUES = st.one_of(
    ATOMS.map(_encodable),
    st.lists(ATOMS, max_size=4).map(_encodable),
    st.dictionaries(TEXTS, ATOMS, max_size=3).map(_encodable),
    st.sampled_from(
        [
            _MARK,
            b"\xff\xfe",
            Decimal("-0.00001"),
            datetime(1970, 1, 1, tzinfo=UTC),
            datetime(9999, 12, 31, tzinfo=UTC),
            _encodable(_deep(20)),
        ]
    ),
)
HEADERS = [
    "x-ojs-queue", "x-ojs-attempt", "x-ojs-max-attempts", "x-ojs-created-at", "x-ojs-enqueued-at", "x-ojs-scheduled-at",
    "x-ojs-expires-at", "x-ojs-tags", "x-ojs-trace-id", "x-ojs-traceparent", "x-ojs-trace-state", "x-ojs-copy",
    "x-ojs-idempotency-key", "x-ojs-unique-place", "x-ojs-error-message", "x-ojs-error-code", "x-ojs-trace-previous",
    "x-death", "x-delivery-count", "x-delay", "x-first-death-queue", "x-last-death-reason",
]  # fmt: skip
FIELDS = [
    "specversion", "id", "type", "queue", "args", "meta", "priority", "timeout", "timeout_ms", "visibility_timeout",
    "visibility_timeout_ms", "retry", "unique", "tags", "attempt", "created_at", "enqueued_at", "scheduled_at",
    "expires_at", "started_at", "errors", "checkpoint", "result", "state", "workflow_id", "schema", "traceparent",
    "parent_results",
]  # fmt: skip
RETRY_FIELDS = [
    "max_attempts", "initial_interval", "backoff_coefficient", "max_interval", "jitter", "non_retryable_errors",
    "on_exhaustion", "backoff_strategy", "initial_interval_ms", "max_interval_ms",
]  # fmt: skip
UNIQUE_FIELDS = ["key", "keys", "args_keys", "meta_keys", "period", "states", "on_conflict", "hash"]
RETRIES = st.dictionaries(
    st.sampled_from(RETRY_FIELDS), st.one_of(VALUES, st.sampled_from(["PT1S", "P9999Y", "PT1E9S", 10**30]))
)
UNIQUES = st.dictionaries(
    st.sampled_from(UNIQUE_FIELDS), st.one_of(VALUES, st.sampled_from(["P1D", ["active"], "u" * 100_000]))
)


@st.composite
def bodies(draw: st.DrawFn, kind: str, data: dict[str, object]) -> bytes:
    """JSON that is nearly a `kind`, with some fields of any value; now and then not even JSON."""
    made = dict(data)
    fields = (
        FIELDS if kind == "job" else [*data, "data", "subject", "time", "job_id", "queue", "job_ids", "limit", "states"]
    )
    for name in draw(st.lists(st.sampled_from(fields), max_size=3)):
        made[name] = draw(VALUES)
    if kind == "job" and draw(st.booleans()):
        made["retry"] = draw(RETRIES)
    if kind == "job" and draw(st.integers(0, 3)) == 0:
        made["unique"] = draw(UNIQUES)
    text = json.dumps(made, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    match draw(st.integers(0, 12)):
        case 0:
            return text[: draw(st.integers(0, len(text)))]
        case 1:
            return text.replace(b"odd", b"\xff\xfe", 1)
        case 2:
            return text[:-1] + b', "id": "twice", "x": ' + b"[" * 1500 + b"]" * 1500 + b"}"
    return text


@st.composite
def properties(
    draw: st.DrawFn, kinds: st.SearchStrategy[str] | None = None, answers: st.SearchStrategy[str] | None = None
) -> bytes:
    """Encoded properties; texts in them may be no UTF-8. Some have a type of `kinds`, and a `reply_to` of `answers`."""
    headers = {name: draw(FIELD_VALUES) for name in draw(st.lists(st.sampled_from(HEADERS), max_size=4, unique=True))}
    short = st.sampled_from(["", "x", "y" * 255, _MARK, "ojs.control", "no.such.queue"])
    odd: dict[str, object] = {}
    for name in ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "app_id"):
        if draw(st.integers(0, 3)) == 0:
            odd[name] = draw(short)
    if kinds is not None and draw(st.integers(0, 9)):
        odd["type"] = draw(kinds)
    if answers is not None and draw(st.booleans()):
        odd["reply_to"] = draw(answers)
    if draw(st.integers(0, 3)) == 0:
        odd["expiration"] = draw(st.sampled_from(["60000", "4294967295", "600000"]))
    encoded = BasicProperties(
        headers=headers,
        delivery_mode=draw(st.sampled_from([None, 0, 1, 2, 255])),
        priority=draw(st.sampled_from([None, 0, 9, 255])),
        timestamp=draw(st.sampled_from([None, 0, 2**63 - 1])),
        **odd,  # type: ignore[arg-type]
    ).encode()
    return encoded.replace(_MARK.encode(), b"\xff\xfe\x80" + b"\xc0" * (len(_MARK) - 3))
