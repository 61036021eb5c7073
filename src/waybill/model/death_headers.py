"""Dead letters: the record of deaths in the header `x-death`, and detection of cycles.

`x-death` is a list, newest first, with one entry for each pair of queue and reason: `count`, `reason`, `queue`, `time`
(of the first such death), `exchange` and `routing-keys` as last published, and `original-expiration` if the message had
a time to live of its own. `x-first-death-*` and `x-last-death-*` repeat reason, queue and exchange of the oldest and
newest.
"""

from datetime import UTC, datetime
from typing import Final

from waybill.model.message import NO_TTL, Message

EXPIRED: Final = "expired"
REJECTED: Final = "rejected"
MAX_LENGTH: Final = "maxlen"
DELIVERY_LIMIT: Final = "delivery_limit"
"""The reasons of a death, as RabbitMQ names them."""

DEATH_UNITS: Final = 12
"""How many units of work a dead letter takes: it is decoded, annotated and routed."""
DEATHS: Final = "x-death"
_FIELDS: Final = ["reason", "queue", "exchange"]
READ: Final = [DEATHS, "CC", *[f"x-first-death-{field}" for field in _FIELDS]]
"""The headers that are read of a message that died."""
COUNT_LIMIT: Final = 2**62
# A message with this many deaths on record is dropped: each death copies the record of all earlier ones.
DEATHS_LIMIT: Final = 256


def record_death(
    headers: dict[str, object], message: Message, queue_name: str, reason: str, now: float
) -> dict[str, object]:
    """The headers to set on a message that just died in a queue. `now` is in seconds."""
    deaths = _deaths(headers)
    previous = next(
        (death for death in deaths if death.get("queue") == queue_name and death.get("reason") == reason), None
    )
    rest = [death for death in deaths if death is not previous]
    count = previous.get("count", 0) if previous is not None else 0
    death: dict[str, object] = {
        # Publishers can set any count.
        "count": min(count if isinstance(count, int) else 0, COUNT_LIMIT) + 1,
        "reason": reason,
        "queue": queue_name,
        "time": datetime.fromtimestamp(int(now), UTC) if previous is None else previous.get("time"),
        "exchange": message.address.exchange,
        "routing-keys": routing_keys_of(message, headers),
    }
    if message.ttl_ms != NO_TTL:
        death["original-expiration"] = str(message.ttl_ms)
    changes: dict[str, object] = {DEATHS: [death, *rest]}
    for field in _FIELDS:
        changes[f"x-first-death-{field}"] = headers.get(f"x-first-death-{field}", death[field])
        changes[f"x-last-death-{field}"] = death[field]
    return changes


def closes_cycle(headers: dict[str, object], queue_name: str) -> bool:
    """Whether a dead message for `queue_name` has been in this queue before, without a rejection since.

    A cycle is cut only if it is fully automatic, as in RabbitMQ.
    """
    for death in _deaths(headers):
        if death.get("reason") == REJECTED:
            return False
        if death.get("queue") == queue_name:
            return True
    return False


def died_too_often(headers: dict[str, object]) -> bool:
    """Whether the record of deaths is full."""
    return len(_deaths(headers)) >= DEATHS_LIMIT


def _deaths(headers: dict[str, object]) -> list[dict[str, object]]:
    deaths = headers.get(DEATHS)
    return [death for death in deaths if isinstance(death, dict)] if isinstance(deaths, list) else []


def routing_keys_of(message: Message, headers: dict[str, object]) -> list[str]:
    """The key that a message was published with, and those of its header `CC`."""
    copies = headers.get("CC")
    keys = [key for key in copies if isinstance(key, str)] if isinstance(copies, list) else []
    return [message.address.routing_key, *keys]
