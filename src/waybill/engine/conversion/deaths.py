"""The record of a message's deaths: the header `x-death` of 0-9-1, and RabbitMQ 4's annotation `x-opt-deaths` of 1.0.

| x-death, a list of tables | x-opt-deaths, an array of maps with symbols as keys |
|---|---|
| queue, exchange: string | queue, exchange: string |
| reason: string | reason: symbol |
| count: integer | count: ulong |
| time: timestamp | first-time: timestamp; last-time too, if there was one death |
| routing-keys: array of strings | routing-keys: array of strings |
| original-expiration: string | ttl: uint |
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from waybill.model.declaration_limits import is_text
from waybill.wire.amqp091.field_table import EPOCH
from waybill.wire.amqp10 import codes
from waybill.wire.amqp10.types import Array, Symbol, Timestamp, UInt, ULong

DEATHS_HEADER: Final = "x-death"
DEATHS_ANNOTATION: Final = Symbol("x-opt-deaths")

_NEEDED: Final = frozenset({"queue", "exchange", "reason", "count", "time", "routing-keys"})
_KNOWN: Final = _NEEDED | {"original-expiration"}
_UINT_MAX: Final = 2**32 - 1
_COUNT_MAX: Final = 2**63 - 1


def annotation_of(deaths: object) -> Array | None:
    """`x-opt-deaths` for a list of deaths; None if an entry was not written by a broker."""
    if not isinstance(deaths, list):
        return None
    entries: list[object] = []
    for death in deaths:
        entry = _annotation_entry(death) if isinstance(death, dict) else None
        if entry is None:
            return None
        entries.append(entry)
    return Array(codes.MAP_32, tuple(entries))


def _annotation_entry(death: dict[str, object]) -> dict[object, object] | None:
    texts = [death.get("queue"), death.get("exchange"), death.get("reason")]
    count = death.get("count")
    first_ms = _milliseconds(death.get("time"))
    keys = death.get("routing-keys")
    if not _NEEDED <= set(death) <= _KNOWN or not isinstance(keys, list) or not all(_is_text(key) for key in keys):
        return None
    if not all(_is_text(text) for text in texts) or not isinstance(count, int) or count < 0 or first_ms < 0:
        return None
    reason = str(texts[2])
    if not reason.isascii():
        return None
    entry: dict[object, object] = {
        Symbol("queue"): texts[0],
        Symbol("reason"): Symbol(reason),
        Symbol("count"): ULong(count),
        Symbol("first-time"): Timestamp(first_ms),
    }
    if count == 1:
        entry[Symbol("last-time")] = Timestamp(first_ms)
    entry[Symbol("exchange")] = texts[1]
    entry[Symbol("routing-keys")] = Array(codes.STRING_32, tuple(keys))
    if "original-expiration" in death:
        text = death["original-expiration"]
        if not isinstance(text, str) or not text.isdecimal() or str(int(text)) != text or int(text) > _UINT_MAX:
            return None
        entry[Symbol("ttl")] = UInt(int(text))
    return entry


def _is_text(value: object) -> bool:
    return isinstance(value, str) and is_text(value)


def _milliseconds(time: object) -> int:
    if isinstance(time, datetime):
        return (time - EPOCH) // timedelta(milliseconds=1)
    return int(time) if isinstance(time, Timestamp) else -1


def deaths_of(annotation: object) -> list[dict[str, object]] | None:
    """The list for `x-death`, with times as Timestamp; None if the annotation was not written by a broker."""
    items = list(annotation.items) if isinstance(annotation, Array) else annotation
    if not isinstance(items, list):
        return None
    deaths: list[dict[str, object]] = []
    for item in items:
        death = _death(item) if isinstance(item, dict) else None
        if death is None:
            return None
        deaths.append(death)
    return deaths


def header_of(key: object, annotation: object) -> object:
    """What the header for an annotation has: deaths as a list, any other value as it is."""
    deaths = deaths_of(annotation) if str(key) == str(DEATHS_ANNOTATION) else None
    return annotation if deaths is None else deaths


def _death(entry: dict[object, object]) -> dict[str, object] | None:
    count = entry.get("count")
    time = entry.get("first-time")
    keys = entry.get("routing-keys")
    if isinstance(keys, Array):
        keys = list(keys.items)
    if not isinstance(count, int) or not isinstance(time, Timestamp) or not isinstance(keys, list):
        return None
    death: dict[str, object] = {
        "count": min(int(count), _COUNT_MAX),
        "reason": _text(entry.get("reason")),
        "queue": _text(entry.get("queue")),
        "time": time,
        "exchange": _text(entry.get("exchange")),
        "routing-keys": [_text(key) for key in keys],
    }
    ttl = entry.get("ttl")
    if isinstance(ttl, int):
        death["original-expiration"] = str(int(ttl))
    return death


def _text(value: object) -> str:
    return str(value) if isinstance(value, str) else ""


def moment(milliseconds: int) -> object:
    """A timestamp as the model has it: a datetime, or the number where datetime ends."""
    try:
        return datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return milliseconds
