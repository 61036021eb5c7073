"""What all entities of one node share: the time, the store, the deadlines, and the list of queues with work to do.

**Work is charged to a turn.** The node serves everybody in one thread, so what one peer asks for must never take long
before others are served, however much it is. `work_left` says how many units of work the present turn has left, one of
them being about what a message costs: whatever is done to a message, a binding that is looked at, a consumer that is
asked. Who does the work subtracts it, and stops where it can be taken up again once nothing is left:

    input        the engine takes no more frames of what it has read, and reads no more, until its turn comes
    queues       stay dirty: `late` holds them for the next turn
    timers       stay due
    chores       what a single frame, or the end of a connection, has started and was too large for one turn

The broker gives each turn `TURN_UNITS`, and reads sockets between turns. A read has a sixteenth of them even if others
have used up the turn, so that whoever asks for little gets it at once. Once such shares add up to another turn, reads
have a small share only: however many peers ask for much, a round of reads takes little more than two turns.
"""

from collections import deque
from typing import Final

from mypy_extensions import i64, mypyc_attr

from waybill.model.drainable import Drainable
from waybill.model.message import Message
from waybill.model.operator_log import OperatorLog
from waybill.model.store import Store
from waybill.model.timers import Timers

STREAMS_MAX: Final = 65_536
TURN_UNITS: Final = 2048
READ_SHARE_BITS: Final = 4
SMALL_SHARE_BITS: Final = 8
LOGINS_PER_TURN: Final = 2
"""Passwords that are hashed in one turn: each takes 10 to 25 ms, on purpose."""
BYTES_PER_UNIT: Final = 16_384
"""Copying so many octets costs a unit."""
HELD_LIMIT_BYTES: Final = 512 << 20
TIMER_RETRY_S: Final = 1.0
CHORE_TRIES_MAX: Final = 3
FOOTPRINT_MIN_BYTES: Final = 16 << 20


class Sealed:
    """Has messages in memory until they are written."""

    def let_go(self) -> bool:
        """Let them go. False if they are not written yet."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Chore:
    """Work that takes more than one turn. Nobody may depend on its end but who waits for that with a `then`."""

    failures: int = 0
    """How often `work` has raised an exception: a few times it is called again, for the rest of the work."""

    def work(self) -> bool:
        """Go on as far as `Runtime.work_left` allows. True when it is done."""
        raise NotImplementedError


class CountedChore(Chore):
    """A chore that removes messages. `count`: how many."""

    def __init__(self, count: int) -> None:
        self.count = count


class Runtime:
    """`now` is in seconds of the node's clock (Unix time, never going back); whoever feeds the node keeps it current.

    `memory_bytes` counts message content held in memory; above `memory_limit_bytes` queues keep only a small head.
    `held_bytes` counts what is not finished: bodies in pieces, transactions; at most `held_limit_bytes` are taken.
    `footprint_bytes` is what all that is declared and attached takes (see `footprint`); messages have half as much
    less, but always a quarter of the limit. `sealed` have let go of nothing yet, while memory is short.
    `unread_bytes` is about what waits for peers that do not read.
    `streams_max` streams may be declared: each has a file open.
    """

    def __init__(self, store: Store, memory_limit_bytes: i64) -> None:
        self.now: float = 0.0
        self.store = store
        self.messages = store.messages
        self.operator_log = OperatorLog()
        self.timers = Timers()
        self.dirty: list[Drainable] = []
        self.late: list[Drainable] = []
        self.turn_units: i64 = TURN_UNITS
        self.work_left: i64 = TURN_UNITS
        self.logins_left: i64 = LOGINS_PER_TURN
        self._shares_left: i64 = TURN_UNITS
        self.chores: deque[Chore] = deque()
        self.memory_bytes: i64 = 0
        self.memory_limit_bytes: i64 = memory_limit_bytes
        self.held_bytes: i64 = 0
        self.held_limit_bytes: i64 = HELD_LIMIT_BYTES
        self.footprint_bytes: i64 = 0
        self.footprint_limit_bytes: i64 = max(memory_limit_bytes // 2 * 3, FOOTPRINT_MIN_BYTES)
        self.configured_limit_bytes: i64 = memory_limit_bytes
        self.sealed: list[Sealed] = []
        self.unread_bytes: i64 = 0
        self.unread_limit_bytes: i64 = max(memory_limit_bytes // 4, FOOTPRINT_MIN_BYTES)
        self.stream_count: i64 = 0
        self.streams_max: i64 = STREAMS_MAX
        # The message whose deduplication key was read last: once, however many queues it goes to.
        self.deduplicated: Message | None = None
        self.deduplication_key = ""
        # Why nothing new may be kept on the disk; empty while there is room.
        self.disk_alarm = ""

    def add_footprint(self, size: i64) -> None:
        """Something was declared or attached that takes so much; less than nothing for what is gone."""
        self.footprint_bytes += size
        limit = self.configured_limit_bytes
        self.memory_limit_bytes = limit - min(self.footprint_bytes // 2, limit // 4 * 3)

    def let_go_of_written(self) -> None:
        """Messages on the disk that only waited for that need no memory any more, where it is short."""
        waiting = self.sealed
        self.sealed = []
        for sealed in waiting:
            if not sealed.let_go():
                self.sealed.append(sealed)

    def mark_dirty(self, queue: Drainable) -> None:
        if not queue.is_dirty:
            queue.is_dirty = True
            self.dirty.append(queue)

    def drain(self) -> None:
        """Drain every dirty queue once, and those that this makes dirty in turn (dead letters).

        Those that the turn has no units left for are late. They come before those that have had some of this turn:
        else one queue that needs a whole turn each time would keep them waiting for ever.
        """
        waiting: list[Drainable] = []
        while self.dirty:
            queues = self.dirty
            self.dirty = []
            done = 0
            try:
                for queue in queues:
                    done += 1
                    if self.work_left <= 0:
                        waiting.append(queue)
                        continue
                    self.work_left -= 1
                    queue.is_dirty = False
                    queue.drain()
            finally:
                # An exception that ends a drain must not make the queues behind it wait for ever.
                if done < len(queues):
                    self.dirty = queues[done:] + self.dirty
                if waiting:
                    self.late = waiting + self.late
                    waiting = []

    def fire_timers(self) -> None:
        """Fire what is due. What the turn has no units left for stays due."""
        timers = self.timers
        while self.work_left > 0:
            timer = timers.pop_due(self.now)
            if timer is None:
                break
            try:
                timer.fire(self.now)
            except Exception:
                # Most timers schedule themselves: an exception must not be the last that is heard of one.
                timers.schedule(self.now + TIMER_RETRY_S, timer)
                raise
            # Not before: a timer that finds nothing left does nothing, and would be due again at once, for ever.
            self.work_left -= 1

    def put_off(self, queue: Drainable) -> None:
        """A queue stops draining because the turn is over."""
        if not queue.is_dirty:
            queue.is_dirty = True
            self.late.append(queue)

    # --- turns ---

    @property
    def has_late_work(self) -> bool:
        """Whether another turn has something to do."""
        return bool(self.late or self.chores)

    def begin_turn(self) -> None:
        self.work_left = self.turn_units
        self._shares_left = self.turn_units
        self.logins_left = LOGINS_PER_TURN

    def begin_read(self) -> None:
        """A peer's input is taken: others may have used up the turn, but not its share."""
        share = self.turn_units >> (READ_SHARE_BITS if self._shares_left > 0 else SMALL_SHARE_BITS)
        share += 1
        if self.work_left < share:
            self._shares_left -= share - max(self.work_left, 0)
            self.work_left = share

    def catch_up(self) -> None:
        """Do what former turns have left, as far as this one goes: queues, then chores, each with a share of it."""
        self.work_left = max(self.work_left, (self.turn_units >> 2) + 4)
        if self.late:
            # What became dirty since then comes first: who has asked for little does not wait behind who has for much.
            self.dirty.extend(self.late)
            self.late = []
        self.drain()
        chores = self.chores
        count = len(chores)
        if count:
            self.work_left = max(self.work_left, (self.turn_units >> 2) + 4)
            while count > 0 and self.work_left > 0:
                count -= 1
                self.work_left -= 1
                chore = chores.popleft()
                if not self._is_done(chore):
                    chores.append(chore)
            self.drain()

    def begin(self, chore: Chore) -> None:
        """Do a chore: as much of it as this turn allows now, and the rest in turns to come."""
        if self.work_left <= 0 or not self._is_done(chore):
            self.chores.append(chore)

    def _is_done(self, chore: Chore) -> bool:
        try:
            return chore.work()
        except Exception:
            chore.failures += 1
            if chore.failures < CHORE_TRIES_MAX:
                self.chores.append(chore)
            raise

    def go_on_with(self, chore: Chore) -> None:
        """Do a chore in turns to come."""
        self.chores.append(chore)
