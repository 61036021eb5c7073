"""Jobs for later: in a moment, or in years. They wait at the broker, on any broker, without a plugin.

python -m examples.scheduled [URI]
"""

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from waybill import Jobs, Worker

DEFAULT_URI = "amqp://guest:guest@localhost:5672/%2Fojs"
jobs = Jobs(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_URI)
finished = asyncio.Event()


@jobs.handler("reminder.show", queue="scheduled")
async def remind(text: str) -> None:
    print(text)
    if text == "second":
        finished.set()


async def main() -> None:
    async with jobs, Worker(jobs):
        await remind.options(delay=timedelta(seconds=2)).push("second")
        await remind.options(scheduled_at=datetime.now(UTC) + timedelta(seconds=1)).push("first")

        # A job that would come too late is not done at all.
        await remind.options(delay=timedelta(seconds=1), expires_at="+PT0.5S").push("never shown")

        next_year = (await remind.options(scheduled_at="+P365D").push("happy new year")).envelope
        print(f"{next_year.state} for {next_year.scheduled_at}")
        await finished.wait()


if __name__ == "__main__":
    asyncio.run(main())
