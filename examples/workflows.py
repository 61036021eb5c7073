"""A chain, a batch with callbacks and a graph, with the results of the steps before.

waybill broker --port 5672                # in one terminal
python -m examples.workflows              # in another; or give it the URI of any AMQP 0-9-1 broker
"""

import asyncio
import sys
from dataclasses import dataclass

from waybill import Coordinator, Jobs, Worker
from waybill.ojs import Workflow, batch, chain, group, parent_outcomes, parent_result, parent_results

DEFAULT_URI = "amqp://guest:guest@localhost:5672/%2Fojs"
QUEUE = "workflows"
jobs = Jobs(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_URI)


@dataclass
class Order:
    """What the first step returns and the second reads."""

    number: int
    total: float


@jobs.handler("order.load", queue=QUEUE)
async def load(number: int) -> Order:
    return Order(number, 19.5)


@jobs.handler("order.charge", queue=QUEUE)
async def charge() -> str:
    """A step after `load` finds what that has returned, typed."""
    order = parent_result(load)
    return f"order {order.number}: {order.total:.2f} charged"


@jobs.handler("letter.send", queue=QUEUE)
def send(address: str) -> int:
    if "@" not in address:
        raise ValueError(f"{address} is no address")
    return len(address)


@jobs.handler("letter.report", queue=QUEUE)
async def report() -> str:
    outcomes = parent_outcomes(send)
    return f"{sum(isinstance(one, int) for one in outcomes)} of {len(outcomes)} sent"


@jobs.handler("letter.total", queue=QUEUE)
async def total() -> int:
    return sum(parent_results(send))


async def main() -> None:
    async with jobs, Coordinator(jobs, queues=[QUEUE]), Worker(jobs, queues=[QUEUE], concurrency=10):
        order = await chain(load.job(7), charge.job()).push(jobs)
        print(await order.result(timeout=60))

        letters = batch([send.job("ada@example.com")], on_complete=report.job())
        handle = await letters.named("letters").push(jobs)
        done = await handle.wait(timeout=60)
        print(f"letters: {done.state}, {done.metadata.completed_count} jobs done")

        graph = Workflow("graph")
        first = graph.step("first", send.job("grace@example.com"))
        both = graph.step("both", group(send.job("a@example.com"), send.job("b@example.com")), depends_on=[first])
        graph.step("total", total.job(), depends_on=[both])
        print(await (await graph.push(jobs)).result(timeout=60))


if __name__ == "__main__":
    asyncio.run(main())
