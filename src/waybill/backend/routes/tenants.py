"""Tenants, for operators (ojs-multi-tenancy section 10)."""

from __future__ import annotations

import functools
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.errors import RequestRefused, not_found
from waybill.backend.history import DAY
from waybill.backend.job_form import Form
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import page_of
from waybill.backend.router import ADMIN, READ, Route
from waybill.backend.scheduling.pool import read_weight
from waybill.backend.settings import SettingTable
from waybill.backend.shared_jobs import SharedJobs
from waybill.backend.tenant_jobs import list_tenant_jobs
from waybill.backend.tenants import Tenant, check_name, count_of, form_of_limits, read_tenant
from waybill.ojs.coordinator.job_counts import JobCounts
from waybill.ojs.spec.operator_events import TenantCreated
from waybill.ojs.spec.states import State

BASE: Final = "/ojs/v1/admin/tenants"
_WAITING: Final = frozenset({State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.PENDING})


class TenantRoutes:
    """The routes for tenants."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", BASE, self._list, READ),
            Route("GET", f"{BASE}/{{id}}", self._get, READ),
            Route("PUT", f"{BASE}/{{id}}", self._put, ADMIN),
            Route("PUT", f"{BASE}/{{id}}/limits", self._limit, ADMIN),
            Route("DELETE", f"{BASE}/{{id}}", self._remove, ADMIN),
            Route("GET", f"{BASE}/{{id}}/stats", self._stats, READ),
            Route("GET", f"{BASE}/{{id}}/jobs", self._jobs, READ, is_large=True),
        ]

    async def _list(self, request: Request) -> Response:
        if len(self._table):
            await self._shared.look()
        counts = await self._backend.job_counts()
        names = sorted(name for name, _ in self._table.items())
        page, pagination = page_of(request, names, str, default=20, most=100)
        items = [self._form_of(name, counts) for name in page]
        return answer({"items": items, "tenants": items, "pagination": pagination})

    async def _get(self, request: Request) -> Response:
        return answer(await self._with_settings(self._known(request)))

    async def _put(self, request: Request) -> Response:
        """Replace the settings of a tenant."""
        name, body = request.parameters["id"], request.json(required=True)
        check_name(name)
        if body.get("priority_boost", 0) != 0:
            details: Form = {"field": "priority_boost"}
            raise RequestRefused("unsupported", "priority_boost cannot be set.", details=details)
        weight = read_weight(body.get("fairness_weight", 1), "fairness_weight")
        await self._store(name, read_tenant(body.get("limits", {}), Tenant(fairness_weight=weight)))
        return answer(await self._with_settings(name))

    async def _limit(self, request: Request) -> Response:
        """Change some limits of a tenant."""
        name, body = request.parameters["id"], request.json(required=True)
        check_name(name)
        await self._store(name, read_tenant(body, self._table.get(name) or Tenant()))
        return answer(await self._with_settings(name))

    async def _store(self, name: str, tenant: Tenant) -> None:
        is_new = self._table.get(name) is None
        await self._table.put(name, tenant)
        if is_new:
            self._backend.broker.events.record(name, TenantCreated(tenant_id=name))

    async def _remove(self, request: Request) -> Response:
        """Delete the settings of a tenant; its jobs are kept."""
        name = self._known(request)
        await self._table.remove(name)
        return answer({"deleted": True, "tenant_id": name, "id": name})

    async def _stats(self, request: Request) -> Response:
        name = self._known(request)
        await self._shared.look()
        return answer(self._form_of(name, await self._backend.job_counts()))

    async def _jobs(self, request: Request) -> Response:
        items, pagination = await list_tenant_jobs(self._backend, request, self._known(request))
        return answer({"items": items, "jobs": items, "pagination": pagination})

    @property
    def _table(self) -> SettingTable[Tenant]:
        return self._backend.extensions.push_checks.tenants.table

    @property
    def _shared(self) -> SharedJobs:
        return self._backend.extensions.push_checks.tenants.shared

    def _known(self, request: Request) -> str:
        name = request.parameters["id"]
        if self._table.get(name) is None:
            raise not_found("tenant", name)
        return name

    async def _with_settings(self, name: str) -> Form:
        """Return a tenant with its limits as they are set; its statistics also tell how far they are used."""
        await self._shared.look()
        form = self._form_of(name, await self._backend.job_counts())
        return form | {"limits": form_of_limits(self._table.get(name) or Tenant())}

    def _form_of(self, name: str, counts: JobCounts) -> Form:
        config = self._table.get(name) or Tenant()
        queues = counts.of_group(name)
        history = self._backend.extensions.history
        shared = self._shared.known(name)
        states = [state.value for state in State]
        by_state = {one: count_of(counts, name, frozenset({one})) + shared.get(one, 0) for one in states}
        jobs: Form = dict(by_state)
        _, completed, failed = history.done(DAY, queues)
        others_completed, others_failed = self._shared.ended(name)
        jobs |= {"completed_24h": completed + others_completed, "failed_24h": failed + others_failed}
        weights = self._backend.extensions.push_checks.tenants.weights or 1
        rates = [history.throughput(queue) for queue in queues]
        total = functools.partial(_sum, rates)
        active = by_state[State.ACTIVE.value]
        depth = sum(by_state[state.value] for state in _WAITING)
        all_active = counts.total[State.ACTIVE.value]
        limits = form_of_limits(config)
        shown: Form = dict(limits)
        for limit, current in (("max_concurrency", active), ("max_queue_depth", depth)):
            if limit in limits:
                shown[limit] = {"limit": limits[limit], "current": current}
        return {
            "tenant_id": name,
            "id": name,
            "queues": sorted(queues),
            "jobs": jobs,
            "throughput": {one: total(one) for one in ("processed_per_minute", "enqueued_per_minute")},
            "limits": shown,
            "fairness_weight": config.fairness_weight,
            "priority_boost": 0,
            "reason": config.reason,
            "fairness": {
                "weight": config.fairness_weight,
                "effective_share": round(config.fairness_weight / weights, 4),
                "actual_share": round(active / all_active, 4) if all_active else 0.0,
            },
            "updated_at": self._table.updated_at(name),
        }


def _sum(rates: list[Form], name: str) -> float:
    return round(sum(value for one in rates if isinstance(value := one[name], int | float)), 2)
