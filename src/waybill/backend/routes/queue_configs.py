"""The configuration of queues (ojs-queue-config section 9, ojs-admin-api section 6.6)."""

from __future__ import annotations

from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.enqueue import envelope_of
from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import DEFAULT_POLICY, Form
from waybill.backend.leases import DEFAULT_VISIBILITY_SECONDS
from waybill.backend.message import Request, Response, answer
from waybill.backend.options import rate_limit_of
from waybill.backend.push_checks import REJECT, QueueBound, read_bound
from waybill.backend.queue_configs import DEFAULT, FIELDS, QueueConfig, QueueConfigs, check_name, read_config
from waybill.backend.queue_retention import QueueRetention
from waybill.backend.router import ADMIN, READ, Route
from waybill.ojs.spec.envelope import DEFAULT_TIMEOUT_SECONDS
from waybill.ojs.spec.operator_events import QueueConfigUpdated
from waybill.ojs.spec.rate_limit import RateLimitPolicy, read_rate_limit
from waybill.ojs.spec.timestamps import format_duration

PATHS: Final = ("/ojs/v1/queues/{name}/config", "/ojs/v1/admin/queues/{name}/config")
BOUND_FIELDS: Final = ("max_size", "max_size_bytes", "overflow_policy", "backpressure")
LIMIT_FIELDS: Final = ("concurrency", "rate_limit")
SYSTEM_DEFAULTS: Final[Form] = {
    "overflow_policy": REJECT,
    "visibility_timeout": int(DEFAULT_VISIBILITY_SECONDS),
    "default_timeout": DEFAULT_TIMEOUT_SECONDS,
    "allowed_job_types": ["*"],
    "producers": ["*"],
}
"""What applies to a queue without any configuration. There is no default retention: nothing is deleted by itself."""
RETRY_DEFAULTS: Final[Form] = {
    **DEFAULT_POLICY,
    "on_exhaustion": "dead_letter",
}
"""A server keeps dead letters in any case."""
_KNOWN: Final = frozenset({*FIELDS, *BOUND_FIELDS, *LIMIT_FIELDS, "dead_letter"})


class QueueConfigRoutes:
    """The routes for configurations."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        backend.on_close.append(QueueRetention(backend).close)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            route
            for path in PATHS
            for route in (Route("GET", path, self._get, READ), Route("PUT", path, self._put, ADMIN))
        ]

    async def _get(self, request: Request) -> Response:
        name = request.parameters["name"]
        check_name(name)
        return answer({**shown_config(self._backend, name), **configured_at(self._backend, name)})

    async def _put(self, request: Request) -> Response:
        """Set the configuration of a queue, which need not exist yet."""
        name = request.parameters["name"]
        check_name(name)
        await configure(self._backend, name, request.json(required=True))
        return answer({**shown_config(self._backend, name), "updated_at": self._backend.now()})


async def configure(backend: Backend, name: str, given: Form) -> None:
    """Change the given fields of a queue's configuration. Raises RequestRefused and InvalidJob."""
    unknown = sorted(set(given) - _KNOWN)
    if unknown:
        details: Form = {"field": unknown[0]}
        raise RequestRefused("unsupported", f"{unknown[0]} cannot be set for a queue.", details=details)
    bounds, limits, configs = backend.extensions.push_checks.bounds, backend.limits.queues, _configs_of(backend)
    # Read everything first, so that an invalid field changes nothing.
    config = read_config(given, configs.table.get(name))
    if config.dead_letter_queue is not None:
        _check_no_circle(configs, name, config.dead_letter_queue)
    if config.default_retry is not None:
        backend.jobs.check(envelope_of({"type": "queue.default", "args": [], "retry": config.default_retry}))
    bound = _bound_of(given, bounds.get(name)) if any(one in given for one in BOUND_FIELDS) else bounds.get(name)
    policy = _policy_of(given, limits.get(name), name)
    for table, value in ((bounds, bound), (limits, policy), (configs.table, config)):
        if value is None or value == QueueConfig():
            await table.remove(name)
        elif value != table.get(name):
            await table.put(name, value)  # type: ignore[arg-type]
    backend.broker.events.record(name, QueueConfigUpdated(queue=name, fields=sorted(given)))


def _check_no_circle(configs: QueueConfigs, name: str, target: str) -> None:
    """Refuse a dead letter queue whose own failed jobs would come back. Raises RequestRefused."""
    seen = {name}
    following: str | None = target
    while following is not None:
        if following in seen:
            raise invalid("dead_letter_queue", "must not lead back to this queue")
        seen.add(following)
        own = configs.table.get(following)
        following = None if own is None else own.dead_letter_queue


def is_configured(backend: Backend, name: str) -> bool:
    """Return whether anything is set for a queue, which need not exist yet."""
    return bool(configured_at(backend, name))


def configured_at(backend: Backend, name: str) -> Form:
    """Return when the configuration of a queue was last changed, nothing if it has none of its own."""
    tables = backend.extensions.push_checks.bounds, backend.limits.queues, _configs_of(backend).table
    times = [table.updated_at(name) for table in tables if table.get(name) is not None]
    return {"updated_at": max(times)} if times else {}


def shown_config(backend: Backend, name: str) -> Form:
    """Return the configuration of a queue, with what it has from the defaults of all queues and of the system."""
    checks, limits = backend.extensions.push_checks, backend.limits
    bound, policy = checks.bound_of(name), limits.queues.get(name) or limits.queues.get(DEFAULT)
    own = _configs_of(backend).of(name)
    config: Form = {**SYSTEM_DEFAULTS, **msgspec.to_builtins(own)}
    config["default_retry"] = {**RETRY_DEFAULTS, **(own.default_retry or {})}
    config.pop("dead_letter_since", None)
    pressure = None if bound is None else msgspec.to_builtins(bound)
    if bound is not None:
        sizes = {"max_size": bound.max_depth, "max_size_bytes": bound.max_size_bytes}
        config |= {"overflow_policy": bound.strategy, **{one: value for one, value in sizes.items() if value}}
    if policy is not None and policy.concurrency is not None:
        config["concurrency"] = policy.concurrency
    if policy is not None and policy.rate is not None:
        config["rate_limit"] = {"limit": policy.rate.limit, "period": format_duration(policy.rate.period)}
    return {
        "name": name,
        "config": config,
        "configuration": {**config, "backpressure": pressure},
        "backpressure": pressure,
    }


def _configs_of(backend: Backend) -> QueueConfigs:
    return backend.extensions.queue_configs


def _bound_of(given: Form, before: QueueBound | None) -> QueueBound | None:
    """Return the bound of a queue with the given fields changed."""
    pressure = given.get("backpressure")
    if pressure is None:
        pressure = {} if before is None else msgspec.to_builtins(before)
        names = {"max_size": "max_depth", "max_size_bytes": "max_size_bytes"}
        pressure |= {name: given[one] or 0 for one, name in names.items() if one in given}
        if "overflow_policy" in given:
            pressure["strategy"] = given["overflow_policy"] or REJECT
    return read_bound(pressure)


def _policy_of(given: Form, before: RateLimitPolicy | None, name: str) -> RateLimitPolicy | None:
    """Return the limits of a queue with the given ones changed, None if it has none."""
    policy = before or RateLimitPolicy(key=f"queue:{name}")
    if "concurrency" in given:
        count = given["concurrency"]
        read = None if count is None else read_rate_limit({"key": policy.key, "concurrency": count})
        policy = msgspec.structs.replace(policy, concurrency=None if read is None else read.concurrency)
    if "rate_limit" in given:
        limit = given["rate_limit"]
        read = None if limit is None else read_rate_limit(rate_limit_of(limit, name) | {"key": policy.key})
        policy = msgspec.structs.replace(policy, rate=None if read is None else read.rate)
    has_limit = policy.concurrency is not None or policy.rate is not None or policy.throttle is not None
    return policy if has_limit else None
