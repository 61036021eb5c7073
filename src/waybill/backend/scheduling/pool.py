"""Pools of workers (ojs-fair-scheduling section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import msgspec

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import Form
from waybill.backend.type_defaults import read_integer
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.envelope import check_queue
from waybill.ojs.spec.timestamps import parse_duration

STRICT: Final = "strict"
ROUND_ROBIN: Final = "round-robin"
WEIGHTED: Final = "weighted"
LEAST_LOADED: Final = "least-loaded"
STRATEGIES: Final = (STRICT, ROUND_ROBIN, WEIGHTED, LEAST_LOADED)

MAX_QUEUES: Final = 100
MAX_WEIGHT: Final = 1000
MAX_CONCURRENCY: Final = 1_000_000
MAX_NAME_LENGTH: Final = 128
MAX_ROTATION_SECONDS: Final = 600.0
DEFAULT_ROTATION_SECONDS: Final = 30.0
DEFAULT_RATIO: Final = 0.05
_FIELDS: Final = frozenset(
    {"name", "queues", "concurrency", "strategy", "weights", "isolated", "starvation_prevention"}
)


class StarvationPrevention(msgspec.Struct, frozen=True):
    """Guarantees each queue of a pool a fraction of the jobs dispatched within an interval."""

    rotation_seconds: float = DEFAULT_ROTATION_SECONDS
    min_dispatch_ratio: float = DEFAULT_RATIO


class Pool(msgspec.Struct, frozen=True, omit_defaults=True):
    """Workers that share queues. `concurrency` limits their running jobs in total; None means no limit."""

    queues: tuple[str, ...]
    concurrency: int | None = None
    strategy: str = ROUND_ROBIN
    weights: dict[str, float] = {}
    isolated: bool = False
    starvation_prevention: StarvationPrevention | None = None


def check_pool_name(name: object) -> str:
    """Return the name of a pool. Raises RequestRefused."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise invalid("pool", f"must be a printable string of 1 to {MAX_NAME_LENGTH} characters")
    return name


def read_pool(name: str, body: Form) -> Pool:
    """Return the pool that a request defines. Raises RequestRefused."""
    check_pool_name(name)
    unknown = sorted(set(body) - _FIELDS)
    if unknown:
        raise RequestRefused("unsupported", f"{unknown[0]} cannot be set.", details={"field": unknown[0]})
    if body.get("name", name) != name:
        raise invalid("name", "must be the name in the path")
    queues = read_queues(body.get("queues"))
    concurrency = read_integer(body, "concurrency", MAX_CONCURRENCY)
    is_isolated = body.get("isolated", False)
    if not isinstance(is_isolated, bool):
        raise invalid("isolated", "must be true or false")
    weights = read_weights(body.get("weights"))
    foreign = sorted(set(weights) - set(queues))
    if foreign:
        raise invalid("weights", f"must name queues of the pool; {foreign[0]!r} is not one of them")
    return Pool(
        queues,
        concurrency,
        read_strategy(body.get("strategy", ROUND_ROBIN)),
        weights,
        is_isolated,
        _read_prevention(body.get("starvation_prevention"), len(queues)),
    )


def read_queues(value: object) -> tuple[str, ...]:
    """Return the names of queues, each once. Raises RequestRefused, InvalidJob."""
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise invalid("queues", "must be an array with at least one name")
    if len(value) > MAX_QUEUES:
        raise invalid("queues", f"must have at most {MAX_QUEUES} names")
    for queue in value:
        check_queue(queue)
    return tuple(dict.fromkeys(value))


def read_strategy(value: object) -> str:
    """Return a strategy. Raises RequestRefused."""
    if not isinstance(value, str) or value not in STRATEGIES:
        raise invalid("strategy", f"must be one of {', '.join(STRATEGIES)}")
    return value


def read_weights(value: object) -> dict[str, float]:
    """Return the weights of queues; none for None. Raises RequestRefused."""
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_QUEUES:
        raise invalid("weights", f"must be an object with at most {MAX_QUEUES} queues")
    return {queue: read_weight(weight, "weights") for queue, weight in value.items()}


def read_weight(value: object, field: str) -> float:
    """Return a weight. Raises RequestRefused."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_WEIGHT:
        raise invalid(field, f"must be a number above 0, of at most {MAX_WEIGHT}")
    return value


def form_of_pool(name: str, pool: Pool) -> Form:
    """Return a pool for a response."""
    form: Form = {
        "name": name,
        "queues": list(pool.queues),
        "concurrency": pool.concurrency,
        "strategy": pool.strategy,
        "isolated": pool.isolated,
    }
    if pool.weights:
        form["weights"] = dict(pool.weights)
    prevention = pool.starvation_prevention
    if prevention is not None:
        form["starvation_prevention"] = {
            "enabled": True,
            "rotation_interval": msgspec.to_builtins(timedelta(seconds=prevention.rotation_seconds)),
            "min_dispatch_ratio": prevention.min_dispatch_ratio,
        }
    return form


def _read_prevention(value: object, queue_count: int) -> StarvationPrevention | None:
    field = "starvation_prevention"
    if value is None:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("enabled", False), bool):
        raise invalid(field, "must be an object whose enabled is true or false")
    if not value.get("enabled", False):
        return None
    interval, ratio = value.get("rotation_interval", "PT30S"), value.get("min_dispatch_ratio", DEFAULT_RATIO)
    try:
        seconds = parse_duration(str(interval), f"{field}.rotation_interval").total_seconds()
    except InvalidJob as error:
        raise invalid(f"{field}.rotation_interval", "must be an ISO 8601 duration") from error
    if not 1 <= seconds <= MAX_ROTATION_SECONDS:
        raise invalid(f"{field}.rotation_interval", f"must be from 1 to {MAX_ROTATION_SECONDS:.0f} seconds")
    if not isinstance(ratio, int | float) or isinstance(ratio, bool) or not 0 < ratio * queue_count <= 1:
        raise invalid(f"{field}.min_dispatch_ratio", "must be above 0, and at most 1 for all queues together")
    return StarvationPrevention(seconds, float(ratio))
