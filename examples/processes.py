"""CPU-bound work in processes, with progress and a checkpoint; and a resource that the worker makes for its handlers.

python -m examples.processes [URI]

The process of the second job dies half-way, as if the kernel had killed it for want of memory. That costs the job an
attempt, and nothing else; the next attempt goes on from the checkpoint.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from waybill import Jobs, Retry, Worker
from waybill.ojs import current_job, resource

DEFAULT_URI = "amqp://guest:guest@localhost:5672/%2Fojs"
jobs = Jobs(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_URI)
CHUNK = 1000


class Ledger:
    """Stands for a database."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def write(self, line: str) -> None:
        self.lines.append(line)


@asynccontextmanager
async def open_ledger() -> AsyncGenerator[Ledger, None]:
    ledger = Ledger()
    print("ledger opened")
    yield ledger
    print(f"ledger closed with {len(ledger.lines)} lines")


@jobs.handler("primes.count", queue="primes", process=True, retry=Retry(max_attempts=3, jitter=False), timeout=60)
def count_primes(limit: int, dies: bool) -> int:  # noqa: FBT001 - arguments of jobs are positional
    job = current_job()
    state = job.last_checkpoint
    start, found = (state["next"], state["found"]) if state else (2, 0)
    for number in range(start, limit):
        found += all(number % divisor for divisor in range(2, int(number**0.5) + 1))
        if number % CHUNK == 0:
            job.progress(number, limit)
            job.checkpoint({"next": number + 1, "found": found})
            if dies and job.attempt == 1 and number > limit // 2:
                os.kill(os.getpid(), signal.SIGKILL)
    return found


@jobs.handler("primes.book", queue="primes")
async def book(text: str, *, ledger: Ledger = resource(open_ledger)) -> None:
    await ledger.write(text)


async def main() -> None:
    async with jobs, Worker(jobs, concurrency=4, coordinator=True) as worker:
        pushed = [await count_primes.push(20_000, dies) for dies in (False, True)]
        await book.push("two counts were ordered")
        while worker.counts["completed"] < 3:  # noqa: ASYNC110 - easiest to read
            await asyncio.sleep(0.05)
        for one in pushed:
            found = await jobs.info(one.id, "primes")
            while found is None or found.state != "completed":
                found = await jobs.info(one.id, "primes")
            print(f"{found.result} primes in attempt {found.attempt}")


if __name__ == "__main__":
    asyncio.run(main())
