"""Checks the jobs of workflows and cron jobs as those that are pushed at once: their schemas and tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import Form
from waybill.backend.push_checks import TENANT_HEADER, set_tenant
from waybill.backend.schemas import Schemas
from waybill.backend.shared_jobs import tenant_named
from waybill.ojs.cron.definition import CronJob
from waybill.ojs.workflow.definition import Definition

AT_A_TIME: Final = 100
"""Jobs to check before other requests are served."""


async def check_workflow(definition: Definition, schemas: Schemas, body: Form, headers: Mapping[str, str]) -> None:
    """Check the jobs of a workflow, and give them its tenant (ojs-multi-tenancy 15.2). Raises RequestRefused."""
    jobs = dict(_jobs_of(definition, ""))
    given, named = headers.get(TENANT_HEADER), {tenant_named(one) for one in (body, *jobs.values())} - {""}
    if not given and len(named) > 1:
        raise invalid("meta.tenant_id", "must be the same in all jobs of a workflow")
    inherited: Form = {"tenant_id": next(iter(named))} if named else {}
    for number, (path, job) in enumerate(jobs.items(), 1):
        if number % AT_A_TIME == 0:
            await asyncio.sleep(0)
        try:
            if given:
                set_tenant(job, given)
            elif inherited:
                meta = job.get("meta")
                job["meta"] = (meta if isinstance(meta, dict) else {}) | inherited
            schemas.check(job)
        except RequestRefused as error:
            error.message = f"{path}: {error.message}"
            raise


def check_cron(job: CronJob, schemas: Schemas, headers: Mapping[str, str]) -> None:
    """Check the jobs of a cron job, and give them the tenant of a request. Raises RequestRefused."""
    made: Form = {"type": job.type, "args": job.args, "meta": job.meta, "version": job.options.get("version")}
    tenant = headers.get(TENANT_HEADER)
    if tenant:
        set_tenant(made, tenant)
        job.meta = {**job.meta, "tenant_id": tenant}
    schemas.check(made)


def _jobs_of(part: Definition, path: str) -> Iterator[tuple[str, Form]]:
    """Yield the jobs of a part, each with its place."""
    if part.job is not None:
        yield path, part.job
    for index, step in enumerate(part.steps):
        yield from _jobs_of(step, f"{path}.steps[{index}]".lstrip("."))
    for name, callback in part.callbacks.items():
        yield from _jobs_of(callback, f"{path}.callbacks.{name}".lstrip("."))
