"""Typed handlers, async and plain, one worker, and what the broker says about every job.

waybill broker --port 5672                # in one terminal
python -m examples.quickstart             # in another; or give it the URI of any AMQP 0-9-1 broker
"""

import asyncio
import sys

from waybill import Jobs, Worker

DEFAULT_URI = "amqp://guest:guest@localhost:5672/%2Fojs"
jobs = Jobs(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_URI)
done = asyncio.Semaphore(0)


@jobs.handler("email.send", queue="quickstart")
async def send_email(to: str, subject: str = "Hello") -> dict[str, str]:
    """An async handler runs in the event loop; what it returns becomes the job's result."""
    await asyncio.sleep(0.01)
    print(f"sent {subject!r} to {to}")
    done.release()
    return {"to": to}


@jobs.handler("number.crunch", queue="quickstart")
def crunch(limit: int) -> int:
    """A plain function runs in a thread, so it may block."""
    total = sum(n * n for n in range(limit))
    print(f"the squares below {limit} add up to {total}")
    return total


async def main() -> None:
    async with jobs:
        # A push returns when the broker has the job on its disk. The arguments are checked by your type checker.
        job = await send_email.push("ada@example.com", subject="Welcome")
        print(f"pushed {job.type} as {job.id}")
        await crunch.push(1000)

        # Options are for this push; the handler's own settings are the defaults.
        await send_email.options(priority=10, tags=["urgent"]).push("grace@example.com")

        # Many jobs go out without waiting for each answer.
        await jobs.push_many(send_email.job(f"user{n}@example.com") for n in range(3))

        async with Worker(jobs, concurrency=10) as worker:
            for _ in range(5):
                await done.acquire()
        print(f"completed: {worker.counts['completed']}")


if __name__ == "__main__":
    asyncio.run(main())
