"""Jobs that are due again and again: in intervals, and by expressions in a time zone.

python -m examples.periodic [URI]
"""

import asyncio
import sys
from datetime import timedelta

from waybill import Coordinator, Jobs, Retry, Worker

DEFAULT_URI = "amqp://guest:guest@localhost:5672/%2Fojs"
jobs = Jobs(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_URI)
checks: asyncio.Queue[str] = asyncio.Queue()


@jobs.cron("0 9 * * MON-FRI", tz="Europe/Berlin", description="the numbers of yesterday")
@jobs.handler("report.daily", queue="periodic", retry=Retry(max_attempts=5))
async def daily_report() -> None:
    print("the daily report")


# One handler, two cron jobs: every month that no coordinator was there for is made up for.
@jobs.cron("0 23 31 12 *", tz="Europe/Berlin", name="billing.year", args=["year"])
@jobs.cron("0 23 L * *", tz="Europe/Berlin", name="billing.month", missed="all", overlap="cancel_previous")
@jobs.handler("billing.close", queue="periodic")
async def close_books(period: str = "month") -> None:
    print(f"the books of this {period} are closed")


# A function becomes a handler, too.
@jobs.cron(every=timedelta(seconds=1), job_type="health.check", queue="periodic")
async def check_health() -> None:
    checks.put_nowait("all is well")


async def main() -> None:
    async with jobs, Coordinator(jobs, queues=["periodic"]), Worker(jobs):
        for _ in range(2):
            print(await checks.get())
        await jobs.crons.pause(check_health.type)
        await jobs.crons.run("billing.year")
        for one in await jobs.crons.list():
            print(f"{one.name}: {one.cron}, {one.status}")
        for one in await jobs.crons.list():
            await jobs.crons.remove(one.name)


if __name__ == "__main__":
    asyncio.run(main())
