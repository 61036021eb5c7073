"""Where a batch is written: a short one on the loop, a long one on the thread, which must get on beside a busy loop."""

import asyncio
import os
import sys
import threading
from pathlib import Path

import pytest

from waybill.broker import Broker
from waybill.broker.commit_loop import INLINE_WRITE_BYTES, CommitLoop
from waybill.client import BasicProperties, connect
from waybill.model.runtime import Chore
from waybill.node.node import Node, NodeOptions
from waybill.storage.memory import MemoryStore
from waybill.transport.clock import Clock
from waybill.transport.disk import HURRIED_SWITCH_INTERVAL_S, CommitThread

PERSISTENT = BasicProperties(delivery_mode=2)


@pytest.mark.parametrize("confirms", [False, True])
async def test_a_long_batch_never_blocks_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, confirms: bool
) -> None:
    on_the_loop: list[int] = []
    elsewhere: list[int] = []
    write = os.pwritev

    def watched_write(descriptor: int, pieces: list[bytes], offset: int) -> int:
        is_loop = threading.current_thread() is threading.main_thread()
        (on_the_loop if is_loop else elsewhere).append(sum(map(len, pieces)))
        return write(descriptor, pieces, offset)

    monkeypatch.setattr(os, "pwritev", watched_write)
    async with Broker(port=0, data_dir=tmp_path) as broker, connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=confirms)
        await channel.declare_queue("q", durable=True)
        channel.publish_nowait(bytes(2 << 20), routing_key="q", properties=PERSISTENT)
        async with asyncio.timeout(20):
            while sum(on_the_loop) + sum(elsewhere) < 2 << 20:
                await asyncio.sleep(0)
    assert max(elsewhere) > INLINE_WRITE_BYTES
    assert max(on_the_loop, default=0) <= INLINE_WRITE_BYTES


async def test_a_slow_commit_is_given_the_interpreter_lock_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns of a busy loop may keep it from the thread; other threads of the process keep their interval otherwise."""
    usual = sys.getswitchinterval()
    disk_is_stuck = threading.Event()
    disk_goes_on = threading.Event()
    synchronise = os.fdatasync

    def slow_fdatasync(descriptor: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            disk_is_stuck.set()
            disk_goes_on.wait()
        synchronise(descriptor)

    async with Broker(port=0, data_dir=tmp_path) as broker, connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        await channel.declare_queue("q", durable=True)
        monkeypatch.setattr(os, "fdatasync", slow_fdatasync)
        try:
            async with asyncio.timeout(20):
                published = asyncio.ensure_future(
                    channel.publish(bytes(2 << 20), routing_key="q", properties=PERSISTENT)
                )
                while not disk_is_stuck.is_set():
                    await asyncio.sleep(0)
                while sys.getswitchinterval() > HURRIED_SWITCH_INTERVAL_S:
                    await channel.declare_queue("q", passive=True)
                disk_goes_on.set()
                await published
        finally:
            disk_goes_on.set()
        assert sys.getswitchinterval() == usual


class Endless(Chore):
    """Has more to do after every turn."""

    def __init__(self) -> None:
        self.turns = 0

    def work(self) -> bool:
        self.turns += 1
        return False


async def test_a_round_of_the_event_loop_has_one_turn_however_often_a_timer_or_a_commit_ends_one() -> None:
    """Else sockets are read ever later, as long as there is more work than a turn takes."""
    thread = CommitThread(asyncio.get_running_loop())
    clock = Clock()
    node = Node(MemoryStore(), NodeOptions("test", "0", bytes, 1 << 30), clock.now())
    chore = Endless()
    commit_loop = CommitLoop(node, thread, clock, lambda error: None)
    try:
        node.runtime.begin(chore)
        for _ in range(20):
            commit_loop.catch_up()
            await asyncio.sleep(0)
        before = chore.turns
        for _ in range(20):
            await asyncio.sleep(0)
        assert chore.turns - before == 20
    finally:
        commit_loop.stop()
        thread.close()
