"""What a turn has no room for goes on in the next ones, and everybody comes to it."""

import pytest

from waybill.engine.delivery.drain import catch_up
from waybill.model.drainable import Drainable
from waybill.model.runtime import Runtime
from waybill.model.timers import Timer
from waybill.storage.memory import MemoryStore


class Greedy(Drainable):
    """A queue that always needs a whole turn."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.runtime = runtime
        self.turns = 0

    def begin_drain(self) -> bool:
        self.turns += 1
        self.runtime.work_left = 0
        self.runtime.put_off(self)
        return False


def test_queues_that_need_whole_turns_take_turns() -> None:
    runtime = Runtime(MemoryStore(), 1 << 20)
    queues = [Greedy(runtime) for _ in range(3)]
    for queue in queues:
        runtime.mark_dirty(queue)
    for _ in range(6):
        runtime.begin_turn()
        catch_up(runtime)
    assert [queue.turns for queue in queues] == [2, 2, 2]


class Expiring(Timer):
    """A timer that needs some of a turn, and is due until it gets it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.has_done = False

    def fire(self, now: float) -> None:
        if self.runtime.work_left <= 0:
            self.runtime.timers.schedule(now, self)
        else:
            self.has_done = True


@pytest.mark.parametrize("units", [1, 2, 16])
def test_a_timer_gets_on_however_short_a_turn_is(units: int) -> None:
    runtime = Runtime(MemoryStore(), 1 << 20)
    runtime.turn_units = units
    timers = [Expiring(runtime) for _ in range(20)]
    for timer in timers:
        runtime.timers.schedule(0.0, timer)
    for _ in timers:
        runtime.begin_turn()
        runtime.fire_timers()
    assert all(timer.has_done for timer in timers)
    assert runtime.timers.next_deadline() is None


def test_however_many_read_in_a_round_it_takes_few_turns() -> None:
    runtime = Runtime(MemoryStore(), 1 << 20)
    for _ in range(2):
        runtime.begin_turn()
        taken = 0
        for _ in range(200):
            runtime.begin_read()
            assert runtime.work_left > 0
            taken += int(runtime.work_left)
            # A little more than there was: the last frame of a read is taken whole.
            runtime.work_left = -3
        assert taken < 3 * runtime.turn_units
        # Who comes early has a share that is worth something.
        runtime.begin_turn()
        runtime.work_left = 0
        runtime.begin_read()
        assert runtime.work_left > runtime.turn_units >> 4


def test_large_reads_wait_where_others_cost_more_than_they_had() -> None:
    """What a frame costs is known after it only, so each of many peers can cost more than its share."""
    runtime = Runtime(MemoryStore(), 1 << 20)
    for _ in range(2):
        runtime.begin_turn()
        reads = 0
        while not runtime.is_overdrawn():
            runtime.begin_read()
            runtime.work_left -= runtime.turn_units // 2
            reads += 1
        assert 16 < reads < 24
    runtime.begin_turn()
    assert not runtime.is_overdrawn()
