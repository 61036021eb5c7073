"""Events reach thousands of listeners in several turns, and their unread events are kept once for all."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from waybill.backend.event_streams import follow
from waybill.backend.listeners import NOTIFIED_PER_TURN, READ_IN_A_ROW, Listener, Listeners, ShuttingDown
from waybill.backend.state_changes import StateChanges
from waybill.ojs.spec.events import ReceivedEvent

MANY = 3 * NOTIFIED_PER_TURN


def event(number: int, kind: str = "job.started") -> ReceivedEvent:
    return ReceivedEvent(str(number), kind, "s", "t")


async def ids_of(listener: Listener) -> list[str]:
    """What a listener has not read yet."""
    found: list[str] = []
    while (one := await listener.next(0.0)) is not None:
        found.append(one.id)
    return found


async def test_each_turn_tells_a_few_listeners() -> None:
    listeners, looks = Listeners(), [0]

    def wanted(_event: ReceivedEvent) -> bool:
        looks[-1] += 1
        return True

    with ExitStack() as stack:
        crowd = [stack.enter_context(listeners.listening(wanted)) for _ in range(MANY)]
        listeners.publish([event(0)], 100)
        while sum(looks) < MANY:
            looks.append(0)
            await asyncio.sleep(0)
        assert max(looks) <= NOTIFIED_PER_TURN
        assert all([await ids_of(one) == ["0"] for one in crowd])


async def test_news_meanwhile_follows_in_order_and_once() -> None:
    listeners = Listeners()
    with ExitStack() as stack:
        crowd = [stack.enter_context(listeners.listening(lambda _: True)) for _ in range(MANY)]
        for number in range(10):
            listeners.publish([event(2 * number), event(2 * number + 1)], 200)
            await asyncio.sleep(0)
        late = stack.enter_context(listeners.listening(lambda _: True))
        listeners.publish([event(20)], 100)
        expected = [str(number) for number in range(21)]
        found: list[list[str]] = [[] for _ in crowd]
        while any(ids != expected for ids in found):
            for ids, one in zip(found, crowd, strict=True):
                ids.extend(await ids_of(one))
        assert await ids_of(late) == ["20"]


async def test_one_that_has_gone_is_not_told() -> None:
    listeners = Listeners()
    looked: list[str] = []
    with ExitStack() as stack:
        for _ in range(MANY):
            stack.enter_context(listeners.listening(lambda _: False))

        def look(one: ReceivedEvent) -> bool:
            looked.append(one.id)
            return True

        with listeners.listening(look):
            listeners.publish([event(0)], 100)
        last = stack.enter_context(listeners.listening(lambda _: True))
        listeners.publish([event(1)], 100)
        told = await last.next()
        assert told is not None
        assert told.id == "1"
    assert not looked


@pytest.mark.parametrize(("limit", "value"), [("MOST_SHARED", 2), ("MOST_SHARED_BYTES", 200)])
async def test_a_slow_listener_loses_the_oldest_and_is_told(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(f"waybill.backend.listeners.{limit}", value)
    listeners = Listeners()
    with listeners.listening(lambda _: True) as slow, listeners.listening(lambda one: one.id == "9") as other:
        for number in range(5):
            listeners.publish([event(number)], 100)
        told = follow(slow, lambda one: (one.id.encode(), one.id == "4"), "queue:email")
        pieces = [piece async for piece in told]
        assert b"system.events_dropped" in pieces[0]
        assert b'{"channel":"queue:email","dropped_count":3,"timestamp":"' in pieces[0]
        assert pieces[1:] == [b"3", b"4"]
        listeners.publish([event(9)], 100)
        assert await ids_of(other) == ["9"]
        assert not other.dropped_count


async def test_a_listener_waits_for_a_heartbeat_and_hears_of_the_end() -> None:
    listeners = Listeners()
    with listeners.listening(lambda _: True) as listener:
        assert await listener.next(0.0) is None
        listeners.end()
        with pytest.raises(ShuttingDown):
            await listener.next()


async def test_who_reads_nothing_costs_no_look_at_each_event() -> None:
    listeners, looks = Listeners(), 0

    def wanted(_event: ReceivedEvent) -> bool:
        nonlocal looks
        looks += 1
        return True

    with listeners.listening(wanted):
        for number in range(100):
            listeners.publish([event(number)], 100)
    assert looks == 1


async def test_a_message_of_many_events_is_read_in_turns() -> None:
    """A hundred streams that each read 500 events in one turn of the loop took half a second of everybody."""
    listeners = Listeners()
    read = [0]

    async def read_all(listener: Listener) -> None:
        for _ in range(200):
            await listener.next()
            read[-1] += 1

    with ExitStack() as stack:
        crowd = [stack.enter_context(listeners.listening(lambda _: True)) for _ in range(10)]
        readers = [asyncio.create_task(read_all(one)) for one in crowd]
        listeners.publish([event(number) for number in range(200)], 20_000)
        while not all(one.done() for one in readers):
            await asyncio.sleep(0)
            read.append(0)
    # All begin in the first turn; after that, one of them goes on in each.
    assert max(read) <= len(crowd) * READ_IN_A_ROW
    assert max(read[5:]) <= READ_IN_A_ROW
    assert sum(read) == 2000


async def test_a_large_event_is_read_in_turns() -> None:
    """Thousands of streams that each sent an event of 900 KB kept others waiting for 0.7 s."""
    listeners, read = Listeners(), [0]

    async def read_one(listener: Listener) -> None:
        await listener.next()
        read[-1] += 1

    with ExitStack() as stack:
        crowd = [stack.enter_context(listeners.listening(lambda _: True)) for _ in range(10)]
        readers = [asyncio.create_task(read_one(one)) for one in crowd]
        await asyncio.sleep(0)
        listeners.publish([event(0)], 100_000)
        while not all(one.done() for one in readers):
            await asyncio.sleep(0)
            read.append(0)
    assert (max(read), sum(read)) == (1, 10)


async def test_streams_keep_one_text_of_an_event() -> None:
    """Each kept its last one until the next: 240 MB for 4,000 streams of an event of 60 KB."""
    listeners = Listeners()
    with listeners.listening(lambda _: True) as one, listeners.listening(lambda _: True) as other:
        listeners.publish([event(0)], 100)
        texts = [
            await anext(follow(listener, lambda _: (bytes(bytearray(b"x" * 5000)), False), "c"))
            for listener in (one, other)
        ]
    assert texts[0] is texts[1]


async def test_many_listeners_remember_few_jobs_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.listeners.MOST_FOLLOWED", 30)
    listeners = Listeners()
    with ExitStack() as stack:
        stack.enter_context(listeners.listening(lambda _: True))
        changes = StateChanges({}, listeners)

        def follow_jobs() -> int:
            for number in range(50):
                changes.form_of(ReceivedEvent("e", "job.started", "s", "t", f"j{number}"))
            return len(changes._states)

        assert follow_jobs() == 30
        for _ in range(9):
            stack.enter_context(listeners.listening(lambda _: True))
        assert follow_jobs() == 3
