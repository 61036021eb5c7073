"""The thread of a store has one line for all, in which long reads stand one at a time."""

import asyncio
import threading

from waybill.ojs.coordinator.store_thread import StoreThread


async def test_a_quick_call_does_not_wait_for_all_long_reads() -> None:
    thread = StoreThread()
    done: list[str] = []
    held = threading.Event()

    def read(number: int) -> None:
        held.wait()
        done.append(f"read {number}")

    reads = [asyncio.create_task(thread.read(lambda number=number: read(number))) for number in range(50)]  # type: ignore[misc]
    await asyncio.sleep(0)
    quick = asyncio.create_task(thread.run(lambda: done.append("quick")))
    await asyncio.sleep(0)
    held.set()
    await asyncio.gather(quick, *reads)
    thread.shut_down()
    assert done.index("quick") <= 2
    assert done[-1] == "read 49"


async def test_a_cancelled_read_lets_the_next_ones_go_on() -> None:
    thread = StoreThread()
    held = threading.Event()
    first = asyncio.create_task(thread.read(held.wait))
    second = asyncio.create_task(thread.read(lambda: 2))
    third = asyncio.create_task(thread.read(lambda: 3))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    held.set()
    assert await third == 3
    thread.shut_down()
