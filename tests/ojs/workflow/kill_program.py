"""The worker and the coordinator of `test_kills.py`: `python -m tests.ojs.workflow.kill_program ROLE URI QUEUE`."""

import asyncio
import logging
import sys
from datetime import timedelta

from waybill.client import ClientError, ReconnectPolicy
from waybill.ojs import Coordinator, FailJob, Handler, Jobs, Retry, Worker, current_job, group, parent_results

FAST = ReconnectPolicy(first_delay_s=0.05, max_delay_s=0.3)
RETRY = Retry(max_attempts=50, initial_interval=timedelta(seconds=0.1), backoff_coefficient=1.0, jitter=False)


class KillJobs:
    """Jobs that check what they get."""

    def __init__(self, uri: str, queue: str) -> None:
        self.jobs = jobs = Jobs(uri, reconnect=FAST)

        @jobs.handler("kill.step", queue=queue, retry=RETRY)
        async def step(value: int, fails: bool = False) -> int:
            await asyncio.sleep(0.005)
            if fails:
                raise FailJob("it is to fail")
            return value

        @jobs.handler("kill.check", queue=queue, retry=RETRY)
        async def check(expected: dict[str, object]) -> str:
            found = current_job().parent_results
            if found != expected:
                raise FailJob(f"{found} are not {expected}")
            return "right"

        @jobs.handler("kill.sum", queue=queue, retry=RETRY)
        async def total(expected: int) -> int:
            found = sum(parent_results(step))
            if found != expected:
                raise FailJob(f"{found} is not {expected}")
            return found

        @jobs.handler("kill.spawn", queue=queue, retry=RETRY)
        async def spawn(count: int) -> None:
            await group(step.job(one) for one in range(count)).spawn(jobs)

        self.step: Handler[..., int] = step
        self.check: Handler[..., str] = check
        self.total: Handler[..., int] = total
        self.spawn: Handler[..., None] = spawn


async def main(role: str, uri: str, queue: str) -> None:
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {role} %(message)s")
    jobs = KillJobs(uri, queue).jobs
    while True:
        part = Worker(jobs, queues=[queue], concurrency=20) if role == "worker" else Coordinator(jobs, queues=[queue])
        try:
            async with jobs, part:
                await asyncio.Event().wait()
        except (OSError, ClientError):
            # The broker is down just now; a service manager would start this again.
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
