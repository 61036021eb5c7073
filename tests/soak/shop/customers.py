"""The customers of the shop, as a program: `python -m tests.soak.shop.customers REPORT`.

They buy until the standard input ends. Then they wait for all that they have asked for, and write it to REPORT.
"""

import asyncio
import itertools
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from examples.shop import front
from examples.shop.jobs import Order, gently, jobs, once_per_partner, render_preview, send_mail
from waybill import JobsError
from waybill.client import ClientError
from waybill.ojs.workflow.numbering import new_workflow_id

T = TypeVar("T")

END_SECONDS: Final = 300
PAUSE_SECONDS: Final = 0.05
CRON: Final = "stock-count"


class Report(msgspec.Struct):
    """What the customers have asked for, and what they have got."""

    invoices: dict[int, str] = {}
    galleries: dict[str, int] = {}
    prices: dict[int, str] = {}
    mails: dict[str, str] = {}
    previews: dict[str, str] = {}
    calls: dict[int, str] = {}
    reminders: dict[str, str] = {}
    syncs: list[str] = []
    firings: int = 0
    troubles: list[str] = []


class Customers:
    """Buys, and remembers what must come of it."""

    def __init__(self) -> None:
        self.report = Report()
        self._waiting: set[asyncio.Task[None]] = set()

    async def buy(self, is_over: Callable[[], bool]) -> None:
        """Ask for everything that the shop has, in turns."""
        for number in itertools.count(1):
            if is_over():
                break
            await self._one_of_each(number)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _one_of_each(self, number: int) -> None:
        report = self.report
        workflow = new_workflow_id()
        order = Order(number, f"c{number}@example.com", "cup", 1 + number % 5)
        placed = await _again(lambda: front.place_order(order, workflow=workflow))
        self._follow(report.invoices, number, lambda: placed.result(timeout=END_SECONDS))
        mail = await _again(lambda: send_mail.push(order.customer, f"thank you {number}"))
        self._follow(report.mails, f"{order.customer}: thank you {number}", lambda: mail.wait(timeout=END_SECONDS))
        call = await _again(lambda: gently.push("acme", number))
        self._follow(report.calls, number, lambda: call.wait(timeout=END_SECONDS))
        sync = await _again(lambda: once_per_partner.push(f"partner{number % 3}", number))
        report.syncs.append(sync.id)
        if number % 3 == 0:
            self._follow(report.prices, number, lambda: _text(front.quote("tea", number)))
        if number % 5 == 0:
            await self._pictures(number)
        if number % 4 == 0:
            await self._basket(number)

    async def _pictures(self, number: int) -> None:
        gallery, workflow = f"gallery{number}", new_workflow_id()
        pictures = [f"{gallery}-{index}" for index in range(1 + number % 7)]
        uploaded = await _again(lambda: front.upload(gallery, pictures, workflow=workflow))
        self._follow(self.report.galleries, gallery, lambda: _count(uploaded.result(timeout=END_SECONDS)))
        preview = await _again(lambda: render_preview.push(gallery))
        self._follow(self.report.previews, gallery, lambda: preview.result(timeout=END_SECONDS))

    async def _basket(self, number: int) -> None:
        customer = f"basket{number}@example.com"
        basket = await _again(lambda: front.leave_basket(customer, timedelta(seconds=3)))
        if number % 8 == 0:
            await _again(basket.cancel)
        self._follow(self.report.reminders, customer, lambda: basket.wait(timeout=END_SECONDS))

    async def leave(self) -> Report:
        """Wait for everything, and for the last tick of the clock."""
        await asyncio.gather(*self._waiting)
        await _again(lambda: jobs.crons.pause(CRON))
        async with asyncio.timeout(END_SECONDS):
            while True:
                info = await _again(lambda: jobs.crons.get(CRON))
                self.report.firings = info.run_count
                if all(firing.state in {"completed", "skipped"} for firing in info.firings):
                    return self.report
                await asyncio.sleep(0.5)

    def _follow(self, found: dict[Any, Any], key: object, ask: Callable[[], Awaitable[object]]) -> None:
        task = asyncio.get_running_loop().create_task(self._wait(found, key, ask))
        self._waiting.add(task)

    async def _wait(self, found: dict[Any, Any], key: object, ask: Callable[[], Awaitable[object]]) -> None:
        try:
            found[key] = await ask()
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs in the report
            self.report.troubles.append(f"{key}: {error!r}")


async def _text(value: Awaitable[object]) -> str:
    return str(await value)


async def _count(values: Awaitable[list[Any]]) -> int:
    return len(await values)


async def _again(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Try for a while what a killed broker or coordinator makes fail."""
    for pause in itertools.chain(itertools.repeat(0.5, 120)):
        try:
            return await call()
        except (ClientError, JobsError, OSError):
            await asyncio.sleep(pause)
    return await call()


async def main() -> Report:
    logging.basicConfig(format="%(asctime)s customers %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    customers = Customers()
    over = asyncio.Event()
    waiting = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    waiting.add_done_callback(lambda _: over.set())
    await _again(jobs.__aenter__)
    try:
        await customers.buy(over.is_set)
        report = await customers.leave()
    finally:
        await jobs.close()
    return report


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(msgspec.json.encode(asyncio.run(main())))
