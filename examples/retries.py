"""Failures: tried again with a growing delay, given up for some errors, kept in the dead letter queue.

python -m examples.retries [URI]
"""

import asyncio
import sys
from datetime import timedelta

from waybill import Jobs, Retry, Worker
from waybill.ojs import DeadLetterJob, JobError, current_job

DEFAULT_URI = "amqp://guest:guest@localhost:5672/%2Fojs"
jobs = Jobs(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_URI)


@jobs.handler(
    "payment.charge",
    queue="retries",
    # Attempts, not retries: at most three runs. A failed job waits at the broker, not in a worker's memory.
    retry=Retry(max_attempts=3, initial_interval=timedelta(seconds=1), non_retryable_errors=["card.*"]),
    timeout=5,
)
async def charge(card: str, cents: int) -> str:
    attempt = current_job().attempt
    print(f"attempt {attempt} to charge {card} with {cents} cents")
    match card:
        case "flaky" if attempt == 1:
            raise ConnectionError("the bank does not answer")
        case "stolen":
            # The type is matched against non_retryable_errors.
            raise JobError("this card was stolen", type="card.stolen")
        case "odd":
            raise DeadLetterJob("a human should look at this")
        case _:
            pass
    return "charged"


async def main() -> None:
    async with jobs, Worker(jobs, concurrency=5) as worker:
        for card in ("good", "flaky", "stolen", "odd"):
            await charge.push(card, 995)
        while worker.counts["completed"] + worker.counts["discarded"] < 4:  # noqa: ASYNC110 - easiest to read
            await asyncio.sleep(0.05)
    print(", ".join(f"{name}: {count}" for name, count in worker.counts.items()))


if __name__ == "__main__":
    asyncio.run(main())
