"""A pusher or a worker of unique jobs, to be killed: python -m tests.ojs.control.unique_program ROLE URI LOG"""

import asyncio
import itertools
import os
import sys
from datetime import timedelta

from waybill.ojs import DuplicateJob, Jobs, Retry, Unique, Worker, current_job

QUEUE = "singles"
KEYS = 4
RETRY = Retry(max_attempts=100, initial_interval=timedelta(milliseconds=10), jitter=False)
ONE_AT_A_TIME = Unique(keys=("type", "args"))


def program(uri: str, log: int) -> Jobs:
    jobs = Jobs(uri, create_queues=True)

    @jobs.handler("single", queue=QUEUE, retry=RETRY)
    async def single(key: int) -> None:
        os.write(log, f"start {key} {current_job().id}\n".encode())
        await asyncio.sleep(0.002)
        os.write(log, f"end {key} {current_job().id}\n".encode())

    return jobs


async def push(jobs: Jobs, key: int) -> str | None:
    """Push a job unless one with its key is there; return its id."""
    try:
        return (await jobs.push("single", [key], unique=ONE_AT_A_TIME)).id
    except DuplicateJob:
        return None


async def main(role: str, uri: str, path: str) -> None:
    log = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    jobs = program(uri, log)
    if role == "worker":
        await Worker(jobs, concurrency=KEYS).run()
    async with jobs:
        for number in itertools.count():
            await push(jobs, number % KEYS)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
