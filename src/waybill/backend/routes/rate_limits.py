"""The limits of jobs: list them, show one, override it for a while (ojs-rate-limiting section 10)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.errors import invalid, not_found
from waybill.backend.job_form import Form
from waybill.backend.limits import Override
from waybill.backend.message import Request, Response, answer
from waybill.backend.options import rate_limit_of
from waybill.backend.pages import page_of
from waybill.backend.router import ADMIN, OPERATE, READ, Route
from waybill.client import Inspector
from waybill.ojs.spec.rate_limit import RateLimitPolicy, Window, check_key, read_rate_limit
from waybill.ojs.spec.timestamps import format_duration, format_timestamp, parse_timestamp

BASE: Final = "/ojs/v1/rate-limits"
_FREE_AT: Final = {"rate": "window_resets_at", "throttle": "next_allowed_at"}


class RateLimitRoutes:
    """The routes for limits."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", BASE, self._list, READ),
            Route("GET", f"{BASE}/{{key}}", self._get, READ),
            Route("PUT", f"{BASE}/{{key}}", self._override, OPERATE),
            Route("DELETE", f"{BASE}/{{key}}", self._remove, OPERATE),
            Route("PUT", f"{BASE}/{{key}}/override", self._override, OPERATE),
            Route("POST", f"{BASE}/{{key}}/override", self._override, OPERATE),
            Route("DELETE", f"{BASE}/{{key}}/override", self._remove, OPERATE),
            Route("PUT", "/ojs/v1/admin/queues/{name}/rate-limit", self._limit_queue, ADMIN),
            Route("GET", "/ojs/v1/admin/queues/{name}/rate-limit", self._of_queue, READ),
            Route("DELETE", "/ojs/v1/admin/queues/{name}/rate-limit", self._remove_queue_limit, ADMIN),
        ]

    async def _list(self, request: Request) -> Response:
        limits = self._backend.limits
        keys = sorted({*limits.known, *(name for name, _ in limits.overrides.items())})
        page, pagination = page_of(request, keys, lambda key: key, default=20)
        found = [await self._form(key) for key in page]
        return answer({"items": found, "rate_limits": found, "count": len(found), "pagination": pagination})

    async def _get(self, request: Request) -> Response:
        key = request.parameters["key"]
        limits = self._backend.limits
        if key not in limits.known and limits.override_of(key) is None:
            raise not_found("rate limit", key)
        return answer(await self._form(key))

    async def _override(self, request: Request) -> Response:
        key, body = request.parameters["key"], request.json(required=True)
        check_key(key)
        expires_at = body.get("expires_at")
        if expires_at is not None:
            if not isinstance(expires_at, str):
                raise invalid("expires_at", "must be an RFC 3339 time")
            expires_at = format_timestamp(parse_timestamp(expires_at, "expires_at").astimezone(UTC))
        concurrency = body.get("concurrency")
        if concurrency is not None and (
            not isinstance(concurrency, int) or isinstance(concurrency, bool) or not 0 <= concurrency <= 1_000_000
        ):
            raise invalid("concurrency", "must be an integer of at least 0")
        rest = {name: value for name, value in body.items() if name not in {"concurrency", "expires_at"}}
        policy = _policy(rest, key)
        if concurrency is None and policy.rate is None and policy.throttle is None:
            raise invalid("concurrency", "is required unless rate or throttle is given")
        override = Override(concurrency, policy.rate, policy.throttle, expires_at)
        await self._backend.limits.overrides.put(key, override, expires_at=expires_at)
        return answer(await self._form(key))

    async def _remove(self, request: Request) -> Response:
        key = request.parameters["key"]
        if not await self._backend.limits.overrides.remove(key):
            raise not_found("rate limit override", key)
        return answer({"key": key, "deleted": True})

    # --- limits of queues ---

    async def _limit_queue(self, request: Request) -> Response:
        name = request.parameters["name"]
        await self._backend.coordinate_queue(name)
        policy = _policy(request.json(required=True), f"queue:{name}")
        if policy.concurrency is None and policy.rate is None and policy.throttle is None:
            raise invalid("concurrency", "is required unless rate or throttle is given")
        await self._backend.limits.queues.put(name, policy)
        return await self._of_queue(request)

    async def _of_queue(self, request: Request) -> Response:
        name = request.parameters["name"]
        policy = self._backend.limits.queues.get(name)
        if policy is None:
            raise not_found("rate limit", name)
        return answer({"queue": name, **_shown(policy)})

    async def _remove_queue_limit(self, request: Request) -> Response:
        name = request.parameters["name"]
        if not await self._backend.limits.queues.remove(name):
            raise not_found("rate limit", name)
        return answer({"queue": name, "deleted": True})

    async def _form(self, key: str) -> Form:
        """Return a limit with its counts; the free permits are those of all servers and workers."""
        limits = self._backend.limits
        policy = limits.known.get(key) or RateLimitPolicy(key=key)
        in_force = limits.in_force(policy)
        form: Form = {"key": key, "waiting_count": limits.waiting(key=key)}
        inspector, now = Inspector(self._backend.broker.connection), datetime.now(UTC)
        if in_force.concurrency is not None:
            active = limits.active[key]
            if in_force.concurrency:
                found = await inspector.queue(limits.pools_of(in_force)["concurrency"].name)
                active = active if found is None else in_force.concurrency - found.message_count
            form["concurrency"] = {
                "limit": in_force.concurrency,
                "active": max(active, 0),
                "available": max(in_force.concurrency - active, 0),
            }
        for name, window in (("rate", in_force.rate), ("throttle", in_force.throttle)):
            if window is not None:
                found = await inspector.queue(limits.pools_of(in_force)[name].name)
                limit = window.limit if name == "rate" else 1
                used = 0 if found is None else max(limit - found.message_count, 0)
                wait = window.period if name == "rate" else window.period / window.limit
                last = limits.started_at.get(key)
                # Starts at other servers are not known here: the next permit is free by then.
                free_at = (now + wait if last is None else max(now, last + wait)) if used else now
                shown = {"current_count": used, _FREE_AT[name]: format_timestamp(free_at)}
                form[name] = _window(window) | shown
        override = limits.override_of(key)
        if override is not None:
            form["override"] = {"concurrency": override.concurrency, "expires_at": override.expires_at}
        return form


def _policy(body: Form, key: str) -> RateLimitPolicy:
    return read_rate_limit(rate_limit_of({**body, "key": key}, key))


def _window(window: Window) -> Form:
    return {"limit": window.limit, "period": format_duration(window.period)}


def _shown(policy: RateLimitPolicy) -> Form:
    form: Form = {"key": policy.key, "on_limit": policy.on_limit}
    if policy.concurrency is not None:
        form["concurrency"] = policy.concurrency
    for name, window in (("rate", policy.rate), ("throttle", policy.throttle)):
        if window is not None:
            form[name] = _window(window)
    return form
