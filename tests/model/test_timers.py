"""Deadlines that are put off, or of what is gone, take no room."""

from waybill.model.timers import SWEEP_LENGTH, Timer, Timers


class Late(Timer):
    """Only its last deadline counts."""

    def __init__(self) -> None:
        self.at = 0.0
        self.fired: list[float] = []

    def fire(self, now: float) -> None:
        self.fired.append(now)

    def is_stale(self, at: float) -> bool:
        return at != self.at


def fire_due(timers: Timers, now: float) -> None:
    while (timer := timers.pop_due(now)) is not None:
        timer.fire(now)


def test_what_is_put_off_again_and_again_takes_no_more_room() -> None:
    timers, late = Timers(), Late()
    for number in range(100_000):
        late.at = 1e9 - number
        timers.schedule(late.at, late)
    assert len(timers) <= SWEEP_LENGTH
    fire_due(timers, late.at)
    assert late.fired == [late.at]


def test_what_is_awaited_stays_in_order() -> None:
    timers = Timers()
    waiting = []
    for number in range(3 * SWEEP_LENGTH):
        late = Late()
        late.at = float(number)
        timers.schedule(late.at, late)
        waiting.append(late)
    fire_due(timers, 1e9)
    assert len(timers) == 0
    assert all(late.fired == [1e9] for late in waiting)
