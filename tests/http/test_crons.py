"""Cron jobs of a program whose jobs have the URL of a server."""

import pytest

from waybill.ojs import Jobs, Worker
from waybill.ojs.errors import CronNotFound, InvalidJob


async def test_cron_jobs_are_registered_listed_paused_run_and_removed(jobs: Jobs) -> None:
    @jobs.cron("0 3 * * *", queue="reports", tz="Europe/Berlin", job_type="report.make")
    async def report() -> None: ...

    assert await jobs.crons.sync() == {"report.make": "created"}
    assert await jobs.crons.sync() == {"report.make": "updated"}
    [info] = await jobs.crons.list()
    assert (info.name, info.cron, info.timezone, info.queue) == ("report.make", "0 3 * * *", "Europe/Berlin", "reports")
    assert (await jobs.crons.pause("report.make")).status == "paused"
    assert (await jobs.crons.resume("report.make")).status == "active"
    job_id = await jobs.crons.run("report.make")
    assert await jobs.job(job_id).state() == "available"
    await jobs.crons.remove("report.make")
    with pytest.raises(CronNotFound):
        await jobs.crons.get("report.make")
    with pytest.raises(InvalidJob):
        await jobs.crons.register(info.__class__(name="x", cron="never", type="report.make"))


async def test_a_worker_registers_what_its_program_declares(jobs: Jobs) -> None:
    @jobs.cron("0 3 * * *", job_type="report.make")
    async def report() -> None: ...

    async with Worker(jobs):
        while not await jobs.crons.list():
            pass
