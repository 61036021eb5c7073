"""The broker's process: the real node on the real journal, its commits executed on a simulated disk at later times.

It does what the broker does around a node: accept connections, work after every input, run one commit at a time, watch
the node's deadlines. And it dies when told to, between two steps or in the middle of its file work.
"""

import errno
from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from tests.simulation.front import Front, Plants
from tests.simulation.violation import Violation
from waybill.engine.server_engine import ServerEngine
from waybill.model.runtime import TURN_UNITS
from waybill.node.node import FORMATS, Node, NodeOptions
from waybill.storage.commit import Commit
from waybill.storage.journal import Journal, JournalOptions
from waybill.testing.simulated_disk import Crash, ReadFailed, SimulatedDisk
from waybill.testing.simulated_network import SimulatedPump
from waybill.testing.virtual_clock import Event, VirtualClock

MAINTENANCE_INTERVAL_S: Final = 1.0
CRASH_WITHIN_OPERATIONS: Final = 12
LARGE_COMMITS: Final = 0.3
DISK_CAPACITY: Final = 1 << 40
DISK_FREE_LIMIT_BYTES: Final = 1 << 20
# A client shows a certificate: no password is stretched for each of its connections.
USER: Final = "CN=sim"
CERTIFICATE: Final[dict[str, object]] = {"subject": ((("commonName", "sim"),),)}
IDLE_TIMEOUT_S: Final = 6
# How much work fits in a turn: often so little that whatever can wait for another turn has to.
TURNS_OF_UNITS: Final = (8, 17, 50, 400, TURN_UNITS, TURN_UNITS)
FAILING_OPERATIONS: Final = ("append", "sync", "create", "sync_directory")


class Died(Protocol):
    """Told when the process is gone."""

    def __call__(self, *, orderly: bool) -> None: ...


class PumpOutput:
    """The pump of one connection, as `waybill.broker.commit_loop` has it."""

    def __init__(self, pump: SimulatedPump) -> None:
        self.pump = pump
        self._is_paused = False

    def serve(self, engine: ServerEngine) -> None:
        self.pump.engine = engine
        self.pump.flush()
        if engine.is_reading_paused != self._is_paused:
            self._is_paused = engine.is_reading_paused
            if self._is_paused:
                self.pump.pause_reading()
            else:
                self.pump.resume_reading()


def serve_dirty(node: Node) -> None:
    """Give each transport what its engine has for it."""
    for engine in node.take_dirty():
        output = engine.transport
        assert isinstance(output, PumpOutput)
        output.serve(engine)


class SimulatedServer:
    """One broker process after the other, on one disk."""

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        plants: Plants,
        died: Died,
        memory_alarm_bytes: int,
        turn_random: Random,
    ) -> None:
        self.memory_alarm_bytes = memory_alarm_bytes
        self.clock = clock
        self.random = random
        self.plants = plants
        self.disk = SimulatedDisk(random, DISK_CAPACITY)
        self.life = 0
        self.node: Node | None = None
        self.when_damaged: Callable[[], None] = lambda: None
        self.most_unsettled: dict[str, int] = {}
        """By queue, how many deliveries were out, at most, when the process ended; not all of them got to a client.

        Of a queue that refuses what is too much: at any time, since all that comes back to it stays.
        """
        self._died = died
        self._options = JournalOptions(random.choice((1 << 10, 1 << 13, 1 << 16, 1 << 20)), open_logs_max=2)
        self._commit_delay_s = random.choice((0.0001, 0.002, 0.03))
        self._memory_limit = random.choice((1 << 13, 1 << 20))
        self._is_committing = False
        self._is_calm = False
        self._is_stopping = False
        self._pumps: list[SimulatedPump] = []
        self._crash_loses_power = False
        self._flips_bit = False
        self._is_disk_honest = True
        self._timer: Event | None = None
        self._turn_random = turn_random

    # --- life ---

    def start(self) -> None:
        """Recover and accept connections. A crash may come in the middle of it, too."""
        if self.node is not None:
            return
        self.life += 1
        if self._flips_bit:
            self._flips_bit = False
            self._flip_bit()
        self._guarded(self._start)

    def _start(self) -> None:
        front = Front(self.disk, self.plants, self._options.segment_bytes)
        journal = Journal.open(front, list(FORMATS), self._options)
        front.is_recovering = False
        if journal.report.damage:
            if self._is_disk_honest:
                raise Violation("damage is reported only if there is some", str(journal.report.damage[0]))
            self.when_damaged()
        options = NodeOptions("sim", "0", self.random.randbytes, self._memory_limit)
        options.disk_free_limit_bytes = DISK_FREE_LIMIT_BYTES
        options.makes_guest = False
        # Over 1.0 it is the broker who says how long a peer may be silent.
        options.limits.heartbeat_s = IDLE_TIMEOUT_S
        self._is_committing = False
        node = self.node = Node(journal, options, self.clock.now())
        # A small limit makes queues keep their messages on disk; the alarm at that limit would stop all publishers.
        node._memory_alarm_bytes = self.memory_alarm_bytes
        node._filesystem = front
        node.runtime.turn_units = self._turn_random.choice(TURNS_OF_UNITS)
        node.end_turn()
        if USER not in node.administration.accounts.by_name:
            node.administration.put_user(USER, "")
            node.administration.set_permission(USER, "/", ".*", ".*", ".*")
        self._after_receive()
        self.clock.call_later(MAINTENANCE_INTERVAL_S, self._of_this_life(self._maintain))

    def stop(self) -> None:
        """Stop as SIGTERM does: tell the peers, give them a moment, make everything durable."""
        if self.node is None or self._is_stopping:
            return
        self._is_stopping = True
        self._note_unsettled()
        self._guarded(self._shut_down)
        self.clock.call_later(1.0, self._of_this_life(self._close))

    def _shut_down(self) -> None:
        if self.node is not None:
            self.node.shut_down()
            self._after_receive()

    def _close(self) -> None:
        for pump in self._pumps:
            pump.lose()
        if self._is_committing:
            self.clock.call_later(0.01, self._of_this_life(self._close))
            return
        if self.node is not None:
            self.node.close()
        self._end()
        self._died(orderly=True)

    def _note_unsettled(self, *, of_all: bool = True) -> None:
        queues = {} if self.node is None else self.node.virtual_hosts["/"].queues
        for name, queue in queues.items():
            if of_all or queue.policy.overflow != "drop-head":
                self.most_unsettled[name] = max(int(queue.unsettled_count), self.most_unsettled.get(name, 0))

    def _end(self) -> None:
        self._note_unsettled()
        self.node = None
        self.life += 1
        self.disk.crash_at = None
        self.disk.fail_next.pop("read", None)
        self.disk.fail_next.pop("open", None)
        self._is_committing = False
        self._is_stopping = False
        self._pumps = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def crash_soon(self, *, power: bool) -> None:
        """Die at once, or at one of the next operations on the disk."""
        if self.node is None or self.disk.crash_at is not None:
            return
        self._crash_loses_power = power
        if self.random.random() < 0.3:
            self.die()
        else:
            self.disk.crash_at = self.disk.operations + 1 + self.random.randrange(CRASH_WITHIN_OPERATIONS)
            # A disk with nothing to do must not save the process.
            self.clock.call_later(0.5, self._of_this_life(self.die))

    def calm(self) -> None:
        """No more faults."""
        self._is_calm = True
        self.disk.crash_at = None
        self.disk.fail_next.clear()
        self._free_disk()

    def fail_disk_soon(self) -> None:
        """The next operation of some kind reports an error."""
        if not self._is_calm:
            self._is_disk_honest = False
            self.disk.fail_next[self.random.choice(FAILING_OPERATIONS)] = errno.EIO

    def fail_reads(self, random: Random) -> None:
        """The next few reads or opens fail, fewer than make a message count as damaged. Not while it starts."""
        if self.node is not None:
            self.disk.failures_left = random.randint(1, 3)
            operation = random.choice(("read", "read", "open"))
            self.disk.fail_next[operation] = errno.EIO if operation == "read" else errno.EMFILE

    def fill_disk(self, *, is_full: bool) -> None:
        """Leave less than the limit that raises the alarm, or so little that a write soon fails; for a while."""
        used = DISK_CAPACITY - self.disk.free_space()
        if self._is_calm or self.disk.capacity < DISK_CAPACITY:
            return
        self.disk.capacity = used + (self.random.randrange(4000) if is_full else DISK_FREE_LIMIT_BYTES - 1)
        self.clock.call_later(self.random.uniform(0.5, 2.0), self._free_disk)

    def _free_disk(self) -> None:
        self.disk.capacity = DISK_CAPACITY

    def flip_bit_at_next_start(self) -> None:
        self._is_disk_honest = False
        self._flips_bit = True

    def die(self) -> None:
        """Be gone at once."""
        if self._crash_loses_power:
            self.disk.lose_power()
        else:
            self.disk.kill()
        self._end()
        self._died(orderly=False)

    def _flip_bit(self) -> None:
        names = [f"messages/{name}" for name in self.disk.list_directory("messages")]
        names = [name for name in names if self.disk.content(name)]
        if names:
            name = self.random.choice(names)
            self.disk.flip_bit(name, self.random.randrange(len(self.disk.content(name))))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a step of the process. If it dies in it, the rest of the step does not happen.

        An error of the disk ends the broker, wherever it comes: a new one must start.
        """
        try:
            work()
        except Crash:
            self.die()
        except OSError as error:
            if error.errno not in {errno.EIO, errno.ENOSPC} or isinstance(error, ReadFailed):
                raise
            # Nothing can be built on what a failed sync has left: the machine starts again, as the documentation asks.
            self._crash_loses_power = self.disk.shows_lost_data
            self.die()

    def _of_this_life(self, work: Callable[[], None]) -> Callable[[], None]:
        """`work` as an event that happens only if the process still lives then."""
        life = self.life

        def happen() -> None:
            if life == self.life:
                self._guarded(work)

        return happen

    @property
    def is_ending(self) -> bool:
        """Its death is under way."""
        return self._is_stopping or self.disk.crash_at is not None

    def queue_names(self) -> list[str]:
        """All queues of the virtual host that clients use."""
        return [] if self.node is None else list(self.node.virtual_hosts["/"].queues)

    # --- connections ---

    def accept(self) -> SimulatedPump | None:
        """A pump for a new connection; None while nobody listens."""
        node = self.node
        if node is None or self._is_stopping:
            return None
        pump = SimulatedPump(
            self.clock,
            lambda pump: node.accept(PumpOutput(pump), pump.peer_address, self.clock.now(), CERTIFICATE),
            self._of_this_life(self._after_receive),
        )
        self._pumps.append(pump)
        return pump

    # --- work ---

    def _after_receive(self) -> None:
        """What `waybill.broker` does in a turn, with a disk that takes as long as it likes."""
        while (node := self.node) is not None:
            node.work(self.clock.now())
            if node.runtime.store.messages.is_in_atomic_section:
                raise Violation("no atomic section is open between turns", "no commit will ever begin again")
            self._note_unsettled(of_all=False)
            commit = None if self._is_committing else node.begin_commit()
            if commit is not None:
                self._commit(node, commit)
                continue
            has_sent = node.has_output
            if has_sent:
                serve_dirty(node)
            if not has_sent or not node.has_work or node.is_turn_over:
                node.end_turn()
                if node.has_late_work:
                    self.clock.call_later(0.0, self._of_this_life(self._after_receive))
                break
        self._arm()

    def _commit(self, node: Node, commit: Commit) -> None:
        delay = self.random.random() * self._commit_delay_s
        if commit.is_synced and self.random.random() < LARGE_COMMITS:
            self._is_committing = True
            self.clock.call_later(delay, self._of_this_life(lambda: self._do(commit, commit.execute)))
            return
        commit.write()
        serve_dirty(node)
        if commit.is_synced:
            self._is_committing = True
            self.clock.call_later(delay, self._of_this_life(lambda: self._do(commit, commit.finish)))
        else:
            commit.finish()
            node.end_commit(commit)

    def _do(self, commit: Commit, work: Callable[[], None]) -> None:
        work()
        # The disk is done; the node hears of it a little later.
        delay = self.random.random() * self._commit_delay_s / 4
        self.clock.call_later(delay, self._of_this_life(lambda: self._committed(commit)))

    def _committed(self, commit: Commit) -> None:
        self._is_committing = False
        if self.node is not None:
            self.node.end_commit(commit)
            self._after_receive()

    def _maintain(self) -> None:
        delay = MAINTENANCE_INTERVAL_S
        if self.node is not None and not self._is_committing and self.node.maintain(self.clock.now()):
            delay = 0.001
        self._after_receive()
        self.clock.call_later(delay, self._of_this_life(self._maintain))

    def _arm(self) -> None:
        at = None if self.node is None else self.node.next_timeout()
        if at is None or (self._timer is not None and not self._timer.cancelled and self._timer.at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.clock.call_at(at, self._of_this_life(self._on_timer))

    def _on_timer(self) -> None:
        self._timer = None
        if self.node is not None:
            self.node.handle_timeout(self.clock.now())
            self._after_receive()
