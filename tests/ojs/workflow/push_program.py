"""Pushes a batch, and never says how many jobs it has: `python -m tests.ojs.workflow.push_program URI QUEUE ID`."""

import asyncio
import sys
from collections.abc import AsyncIterator

from waybill.ojs import Jobs, NewJob, batch

HALF = 150


async def main(uri: str, queue: str, workflow_id: str) -> None:
    async def half() -> AsyncIterator[NewJob]:
        for number in range(HALF):
            yield NewJob("push.one", [number], {"queue": queue})
        print("half", flush=True)
        await asyncio.Event().wait()

    jobs = Jobs(uri, create_queues=True)
    await batch(half(), on_failure=NewJob("push.failed", [], {"queue": queue})).push(jobs, id=workflow_id)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
