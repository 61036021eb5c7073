"""The program of the workers that `test_pains` kills: `waybill worker tests.ojs.pains_program:jobs`."""

import asyncio
import os
from pathlib import Path

from waybill import Jobs, Retry

jobs = Jobs(os.environ.get("PAINS_URI", "amqp://localhost"))
QUEUE = os.environ.get("PAINS_QUEUE", "pains")


def note_run(directory: str) -> int:
    """Leave a file; how many there were before."""
    runs = Path(directory)
    count = len(list(runs.iterdir()))
    (runs / f"{count}-{os.getpid()}").touch()
    return count


@jobs.handler("pain.first-hangs", queue=QUEUE, retry=Retry(max_attempts=3))
async def hang_the_first_time(directory: str) -> None:
    """Say that it began, and hang in its first attempt."""
    if note_run(directory) == 0:
        await asyncio.Event().wait()


@jobs.handler("pain.poison", queue=QUEUE, retry=Retry(max_attempts=2))
async def poison(directory: str) -> None:
    """Kill the worker, as a fault in native code or the out-of-memory killer does."""
    note_run(directory)
    os._exit(1)
