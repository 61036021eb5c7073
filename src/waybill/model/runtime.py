"""The state that all entities of a node share: the time, the store, the timers, and the queues with work to do.

**Work is charged to a turn.** The node serves all peers in one thread, so no request of one peer may delay the others
for long. `work_left` is the number of units of work that the present turn has left. A unit is roughly the cost of a
message: an operation on a message, a look at a binding, a question to a consumer. Code that does work subtracts its
units. When none are left, it stops at a point from which it can continue:

    input        the engine keeps the rest of its input, and reads no more, until its next turn
    queues       stay dirty: `late` keeps them for the next turn
    timers       stay due
    chores       work of a frame, or of the end of a connection, that is too large for one turn

The broker gives each turn `TURN_UNITS`, and reads sockets between turns. Each read has a sixteenth of them even if the
turn is used up, so that small requests are served at once. When these shares, and what reads cost beyond them, add up
to another turn, further reads get a small share only: a round of reads takes little more than two turns, unless single
requests cost more than a turn. When they add up to `ROUND_TURNS`, large reads wait for the next turn.
"""

from collections import deque
from typing import Final

from mypy_extensions import i64, mypyc_attr

from waybill.model.counters import Counters
from waybill.model.drainable import Drainable
from waybill.model.message import Message
from waybill.model.operator_log import OperatorLog
from waybill.model.store import Store
from waybill.model.timers import Timers

STREAMS_MAX: Final = 65_536
TURN_UNITS: Final = 1024
READ_SHARE_BITS: Final = 4
SMALL_SHARE_BITS: Final = 8
ROUND_TURNS: Final = 8
LOGINS_PER_TURN: Final = 2
"""Passwords hashed per turn: each takes 10 to 25 ms, on purpose."""
BYTES_PER_UNIT: Final = 4096
"""How many copied octets cost a unit."""
HELD_LIMIT_BYTES: Final = 512 << 20
TIMER_RETRY_S: Final = 1.0
CHORE_TRIES_MAX: Final = 3
FOOTPRINT_MIN_BYTES: Final = 16 << 20


class Sealed:
    """Has messages in memory until they are written."""

    def let_go(self) -> bool:
        """Free their memory. False if they are not written yet."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Chore:
    """Work that may take several turns."""

    failures: int = 0
    """How often `work` has raised an exception. It is retried a few times."""

    def work(self) -> bool:
        """Continue as far as `Runtime.work_left` allows. True when it is done."""
        raise NotImplementedError


class CountedChore(Chore):
    """A chore that removes messages. `count`: how many."""

    def __init__(self, count: int) -> None:
        self.count = count


class Runtime:
    """`now` is in seconds of the node's clock (Unix time, never going back). The caller of the node updates it.

    `memory_bytes` counts message content held in memory; above `memory_limit_bytes` queues keep only a small head.
    `held_bytes` counts incomplete input: bodies in pieces, transactions; at most `held_limit_bytes` are accepted.
    `footprint_bytes` is the memory of declarations and connections (see `footprint`). Half of both reduces the limit
    for messages, which keeps at least a quarter. `delayed_bytes` is the part of it that delayed messages take.
    `sealed`: messages that free their memory once they are written.
    `unread_bytes` estimates the output that waits for peers that do not read.
    `streams_max` streams may be declared: each has a file open.
    """

    def __init__(self, store: Store, memory_limit_bytes: i64) -> None:
        self.now: float = 0.0
        self.store = store
        self.messages = store.messages
        self.operator_log = OperatorLog()
        self.timers = Timers()
        self.counters = Counters()
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
        self.held_max_bytes: i64 = HELD_LIMIT_BYTES
        self.held_limit_bytes: i64 = HELD_LIMIT_BYTES
        self.footprint_bytes: i64 = 0
        self.footprint_limit_bytes: i64 = max(memory_limit_bytes // 2 * 3, FOOTPRINT_MIN_BYTES)
        self.delayed_bytes: i64 = 0
        self.configured_limit_bytes: i64 = memory_limit_bytes
        self.sealed: list[Sealed] = []
        self.unread_bytes: i64 = 0
        self.unread_limit_bytes: i64 = max(memory_limit_bytes // 4, FOOTPRINT_MIN_BYTES)
        self.stream_count: i64 = 0
        self.streams_max: i64 = STREAMS_MAX
        # The message whose deduplication key was read last, so that it is read once for all of its queues.
        self.deduplicated: Message | None = None
        self.deduplication_key = ""
        # More waits for the disk than it takes at once.
        self.is_disk_behind = False
        # Why the disk accepts nothing new; empty while there is room.
        self.disk_alarm = ""
        # What is published now may have been delivered before a crash.
        self.publishes_again = False
        # A queue that refuses what is too much has promised room for what is published now.
        self.has_promise = False

    def pages_out(self) -> bool:
        """Whether unsettled deliveries must take little memory, because ready messages need the other half."""
        return self.memory_bytes > self.memory_limit_bytes >> 1

    def used_bytes(self) -> i64:
        """All counted memory, except output that peers have not read."""
        return self.memory_bytes + self.footprint_bytes + self.held_bytes

    def is_overfull(self) -> bool:
        """Whether messages exceed their limit by an eighth: the heads of queues stop growing."""
        return self.memory_bytes > self.memory_limit_bytes + (self.memory_limit_bytes >> 3)

    def is_hard_pressed(self) -> bool:
        """Whether heavy publishers must slow down: memory exceeds its limit by a quarter, or the disk is behind."""
        return self.is_disk_behind or self.memory_bytes > self.memory_limit_bytes + (self.memory_limit_bytes >> 2)

    def change_memory_limit(self, memory_limit_bytes: i64) -> None:
        """Use another limit from now on."""
        self.configured_limit_bytes = memory_limit_bytes
        self.footprint_limit_bytes = max(memory_limit_bytes // 2 * 3, FOOTPRINT_MIN_BYTES)
        self.unread_limit_bytes = max(memory_limit_bytes // 4, FOOTPRINT_MIN_BYTES)
        self._share_memory()

    def add_footprint(self, size: i64) -> None:
        """Add the memory of something declared or attached; negative when it is removed."""
        self.footprint_bytes += size
        self._share_memory()

    def declarable_bytes(self) -> i64:
        """How large the footprint may become by declarations. The rest is for connections, and for held input."""
        limit = self.footprint_limit_bytes
        left = limit - (limit >> 2) - max(self.held_bytes - self._small_share(), 0)
        return max(left, limit >> 2)

    def _small_share(self) -> i64:
        """What both held input and declarations may take, however much the other does."""
        return max(self.configured_limit_bytes >> 2, FOOTPRINT_MIN_BYTES)

    def _share_memory(self) -> None:
        """Adapt the limits of messages and of held input to what else takes memory."""
        limit, share = self.configured_limit_bytes, self._small_share()
        self.memory_limit_bytes = limit - min((self.footprint_bytes + self.held_bytes) // 2, limit // 4 * 3)
        left = self.held_max_bytes - max(self.footprint_bytes - share, 0)
        self.held_limit_bytes = min(max(left, share), self.held_max_bytes)

    def let_go_of_written(self) -> None:
        """Free the memory of messages that are on disk by now."""
        waiting = self.sealed
        self.sealed = []
        for sealed in waiting:
            if not sealed.let_go():
                self.sealed.append(sealed)

    def mark_dirty(self, queue: Drainable) -> None:
        if not queue.is_dirty:
            queue.is_dirty = True
            self.dirty.append(queue)

    def fire_timers(self) -> None:
        """Fire due timers, as many as the turn allows. The others stay due."""
        timers = self.timers
        while self.work_left > 0:
            timer = timers.pop_due(self.now)
            if timer is None:
                break
            try:
                timer.fire(self.now)
            except Exception:
                # Most timers reschedule themselves: an exception must not end them.
                timers.schedule(self.now + TIMER_RETRY_S, timer)
                raise
            # Not before: with no units left, a timer does nothing, and would immediately be due again, forever.
            self.work_left -= 1

    def put_off(self, queue: Drainable) -> None:
        """Continue draining a queue in the next turn."""
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
        self._share_memory()

    def begin_read(self) -> None:
        """Begin to process a peer's input: it gets a share even if other peers have used up the turn."""
        share = self.turn_units >> (READ_SHARE_BITS if self._shares_left > 0 else SMALL_SHARE_BITS)
        share += 1
        if self.work_left < share:
            self._shares_left -= share - self.work_left
            self.work_left = share

    def is_overdrawn(self) -> bool:
        """Whether the reads of this round have cost so much that further large ones must wait for the next turn."""
        return self._shares_left <= -self.turn_units * ROUND_TURNS

    def take_up_late(self) -> None:
        """Make the queues that earlier turns left dirty again, with at least a quarter of a turn to drain them."""
        self._grant_quarter()
        if self.late:
            # Newly dirty queues come first: small requests do not wait behind large ones.
            self.dirty.extend(self.late)
            self.late = []

    def continue_chores(self) -> None:
        """Continue every chore once, as far as this turn allows: at least a quarter of a turn."""
        self._grant_quarter()
        chores = self.chores
        count = len(chores)
        while count > 0 and self.work_left > 0:
            count -= 1
            self.work_left -= 1
            chore = chores.popleft()
            if not self._is_done(chore):
                chores.append(chore)

    def _grant_quarter(self) -> None:
        self.work_left = max(self.work_left, (self.turn_units >> 2) + 4)

    def begin(self, chore: Chore) -> None:
        """Start a chore: do as much as this turn allows, and the rest in later turns."""
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
        """Do a chore in later turns."""
        self.chores.append(chore)
