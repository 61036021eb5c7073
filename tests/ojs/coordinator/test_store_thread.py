"""The thread of a store has one line for all, in which long reads stand one at a time."""

import asyncio
import threading

import pytest
from sqlalchemy.exc import OperationalError

from waybill.ojs.coordinator import store_thread
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.memory_job_store import MemoryJobStore
from waybill.ojs.coordinator.store_thread import StoreThread
from waybill.ojs.errors import DatabaseUnusable


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


async def test_a_long_read_of_a_store_in_memory_makes_way() -> None:
    thread, store = StoreThread(), MemoryJobStore()
    thread.make_way(store)
    is_served = threading.Event()

    def read() -> int:
        pauses = 0
        while not is_served.is_set():
            store.pause()
            pauses += 1
        return pauses

    reading = asyncio.create_task(thread.read(read))
    await thread.run(lambda: None)
    while not thread.lock.acquire(blocking=False):
        await asyncio.sleep(0)
    is_served.set()
    thread.lock.release()
    assert await reading > 0
    assert not thread.lock.locked()
    thread.shut_down()


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


async def test_a_database_is_away_until_a_call_reaches_it() -> None:
    thread = StoreThread()

    def fail() -> None:
        raise OperationalError("select 1", {}, ConnectionRefusedError("refused"))

    assert thread.problem is None
    with pytest.raises(DatabaseUnusable):
        await thread.run(fail)
    assert thread.problem == "unreachable"
    await thread.run(lambda: None)
    assert thread.problem is None
    with pytest.raises(DatabaseUnusable):
        await thread.run(fail)
    store = HungStore()
    store.asked = 1
    store.cut()
    assert await thread.ask(store, 60) is None
    assert thread.problem is None
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 / 0)
    assert thread.problem is None
    thread.shut_down()


async def test_a_database_that_takes_long_is_told_while_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_thread, "WARN_SECONDS", 0.0)
    thread = StoreThread()
    begun, held = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        held.wait()

    waiting = asyncio.create_task(thread.run(wait))
    await asyncio.to_thread(begun.wait)
    assert thread.problem == "unresponsive"
    held.set()
    await waiting
    assert thread.problem is None
    thread.shut_down()


class HungStore(JobStore):
    """A database that answers nothing until its connections are cut."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.is_cut = threading.Event()

    def ping(self) -> bool:
        self.asked += 1
        self.is_cut.wait()
        if self.asked == 1:
            raise ConnectionResetError
        return True

    def cut(self) -> None:
        self.is_cut.set()

    def close(self) -> None:
        pass


async def test_a_database_that_hangs_is_known_though_nothing_else_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, store = StoreThread(), HungStore()
    assert await asyncio.gather(*(thread.ask(store, 0.01) for _ in range(5))) == ["unresponsive"] * 5
    assert store.asked == 1
    # The watchdog cuts its connections.
    monkeypatch.setattr(store_thread, "POLL_SECONDS", 0)
    monkeypatch.setattr(store_thread, "CUT_SECONDS", 0.01)
    watching = asyncio.create_task(thread.watch(store))
    assert await thread.ask(store, 60) == "unreachable"
    assert await thread.ask(store, 60) is None
    watching.cancel()
    thread.shut_down()


async def test_a_question_without_an_answer_keeps_nobody_from_ending() -> None:
    thread, store = StoreThread(), HungStore()
    assert await thread.ask(store, 0) == "unresponsive"
    await thread.close(store)
    assert store.is_cut.is_set()
    thread.shut_down()


async def test_a_program_that_ends_asks_a_database_that_is_away_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_thread, "POLL_SECONDS", 0)
    monkeypatch.setattr(store_thread, "LAST_SECONDS", 0.01)
    thread, store = StoreThread(), HungStore()
    calls: list[str] = []

    def wait() -> None:
        calls.append("wait")
        store.is_cut.wait()
        raise OperationalError("select 1", {}, ConnectionResetError("cut"))

    thread.end_soon()
    watching = asyncio.create_task(thread.watch(store))
    for _ in range(3):
        with pytest.raises(DatabaseUnusable):
            await thread.run(wait)
    assert calls == ["wait"]
    await thread.close(store)
    assert calls == ["wait"]
    watching.cancel()
    thread.shut_down()
