"""Events that nobody means well: numbers, times, texts and nesting at their limits and beyond."""

import json
from datetime import timedelta
from typing import Final

from hypothesis import strategies as st

from tests.pipeline.histories import START, event, stamp

NUMBERS: Final = (
    *("0", "-0", "1", "-1", "1.0", "1.5", "-0.0", "1e3", "1e-400", "1e400", "-1e400", "9" * 20, "9" * 5000),
    *(
        "2147483646",
        "2147483647",
        "2147483648",
        "-2147483647",
        "-2147483648",
        "9007199254740991",
        "9223372036854775807",
    ),
    *("31622400000", "31622400001", "18446744073709551616", "NaN", "Infinity", "null", "true", '"3"', '""', "[]", "{}"),
)
TIMES: Final = (
    *("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "0000-01-01T00:00:00Z", "-0001-01-01T00:00:00Z"),
    *("1969-12-31T23:59:59Z", "1999-12-31T23:59:59.999999Z", "2000-01-01T00:00:00Z", "2000-01-01T00:00:00+23:59"),
    *("2099-12-31T23:59:59.999999Z", "2100-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00"),
    *("10000-01-01T00:00:00Z", "2016-12-31T23:59:60Z", "2026-03-02T01:00:00+99:99", "2026-02-30T00:00:00Z"),
    *("2026-03-02", "2026-03-02T00:00:00", "2026-03-02T00:00:00.123456789Z", "2026-03-02 00:00:00z", "now", ""),
)
TEXTS: Final = (
    *('"x"', '""', '"a\\u0000b"', '"\\ud800"', '"\\udfff\\ud800"', '"\\ud83d\\ude00"', '"[/bold]\\u001b[2J<b>"', "7"),
    *("null", '"' + "x" * 3000 + '"', '"\xff\u2028"', '"\\x"', '"unclosed'),
)
DEEP: Final = tuple(
    opening * depth + middle + closing * depth
    for depth in (100, 250, 257, 990, 1500, 20_000)
    for opening, middle, closing in (("[", "", "]"), ('{"a":', "1", "}"))
)
_TYPES: Final = (
    *("job.enqueued", "job.started", "job.completed", "job.failed", "job.retrying", "job.discarded", "job.scheduled"),
    *("job.cancelled", "job.expired", "job.unheard-of", "worker.started", "nothing"),
)
_NUMBER_FIELDS: Final = ("attempt", "total_attempts", "max_attempts", "priority", "duration_ms", "concurrency")
_TIME_FIELDS: Final = ("time", "scheduled_at", "next_retry_at")
_TEXT_FIELDS: Final = ("job_type", "queue", "worker_id", "error", "id", "subject", "type", "source", "args")
_OTHERS: Final = (
    "[]",
    "[[]]",
    "{}",
    "",
    "17",
    "[1, 2",
    "\ufeff{}",
    "\x00",
    '{"id": 1, "id": 2}',
    "[" * 30_000,
    "[{}]x",
)


def encoded(kind: str, job: str, number: int, **raw: str) -> bytes:
    """An event in which the fields of `raw` are these texts of JSON, valid or not."""
    data = {"attempt": 1, "duration_ms": 5, "worker_id": "w1", "error": {"type": "OSError", "message": "no"}}
    whole = event(kind, START, job, number, **data)
    marks = {name: f"@{name}@" for name in raw}
    for name, mark in marks.items():
        if name in whole:
            whole[name] = mark
        else:
            whole["data"][name] = mark  # type: ignore[index] # an object
    text = json.dumps(whole)
    for name, mark in marks.items():
        text = text.replace(f'"{mark}"', raw[name])
    return text.encode("utf-8", "surrogatepass")


def listed() -> list[bytes]:
    """Each odd value in each field once, and messages of several."""
    found = [text.encode() for text in _OTHERS] + [b"\xff\xfe", b'{"a": "\xff"}', b"[" + b'{"a": "\xff"}' + b"]"]
    number = 0
    for fields, values in ((_NUMBER_FIELDS, NUMBERS), (_TEXT_FIELDS, TEXTS), (("args", "error"), DEEP)):
        for name in fields:
            for value in values:
                number += 1
                kind = "worker.started" if name == "concurrency" else _TYPES[number % 6]
                found.append(encoded(kind, f"odd-{number % 40}", number, **{name: value}))
    for name in _TIME_FIELDS:
        for value in TIMES:
            number += 1
            kind = "job.retrying" if name == "next_retry_at" else "job.enqueued"
            found.append(encoded(kind, f"odd-{number % 40}", number, **{name: json.dumps(value)}))
    good, deep = encoded("job.enqueued", "good", 1), encoded("job.enqueued", "deep", 1, args=DEEP[-4])
    return [*found, b"[" + b",".join([good, deep, good]) + b"]", b"[" + b",".join(found[:9]) + b"]"]


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A message: an event with some odd fields, or an array of such, or what is cut out of one."""
    events = []
    for _ in range(draw(st.integers(1, 3))):
        raw = {}
        for fields, values in (
            (_NUMBER_FIELDS, NUMBERS),
            (_TIME_FIELDS, [json.dumps(time) for time in TIMES]),
            (_TEXT_FIELDS, TEXTS),
            (("args",), DEEP[:6]),
        ):
            if draw(st.integers(0, 3)) == 0:
                raw[draw(st.sampled_from(fields))] = draw(st.sampled_from(values))
        at = START + timedelta(milliseconds=draw(st.integers(0, 10_000_000)))
        raw.setdefault("time", json.dumps(stamp(at)))
        kind = draw(st.sampled_from(_TYPES))
        events.append(encoded(kind, f"j{draw(st.integers(0, 30))}", draw(st.integers(0, 999)), **raw))
    body = events[0] if len(events) == 1 else b"[" + b",".join(events) + b"]"
    if draw(st.integers(0, 9)) == 0:
        cut = draw(st.integers(0, len(body)))
        body = body[:cut] + draw(st.binary(max_size=3)) + body[cut + draw(st.integers(0, 3)) :]
    return body
