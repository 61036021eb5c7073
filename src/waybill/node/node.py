"""The node: virtual hosts, users and a store behind the engines of its connections. It reads no clock and no socket.

One round of work, started by input, a deadline or a finished commit:

    engines take input  ->  dirty queues drain  ->  confirms are settled or wait  ->  a commit begins  ->  output goes

The caller feeds engines, calls `work`, and serves the transports of those that `take_dirty` names: nothing here calls a
transport. What is left to be written, `begin_commit` hands out, and `end_commit` takes back once it has been executed,
on any thread.
"""

import sys
from collections.abc import Callable
from typing import Final

from waybill.engine.amqp010.message_format import AMQP010
from waybill.engine.amqp091.message_format import AMQP091
from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.delivery.drain import catch_up, drain
from waybill.engine.host import Limits, User
from waybill.engine.negotiation import Negotiation
from waybill.engine.scram import ScramKeys
from waybill.engine.server_engine import ServerEngine
from waybill.model.binding import EXCHANGE, QUEUE
from waybill.model.errors import DefinitionsLost, NotAllowed
from waybill.model.eviction import Eviction
from waybill.model.message import MessageFormat
from waybill.model.operator_log import OperatorLog
from waybill.model.queue import Queue
from waybill.model.runtime import Chore, Runtime
from waybill.model.virtual_host import VirtualHost
from waybill.node.accounts import Accounts
from waybill.node.administration import AdministeredNode, Administration, FirstUser
from waybill.node.certificate import DISTINGUISHED_NAME, certificate_user
from waybill.node.commit_waiters import DurableCall, call_waiters
from waybill.node.detached_state import make_detached_state, recover_detached_state, release_detached_state
from waybill.node.recovery import report_recovery
from waybill.node.timeout_check import TimeoutCheck
from waybill.storage.commit import Commit
from waybill.storage.definitions import REMEDY
from waybill.storage.filesystem import Filesystem
from waybill.storage.journal import Journal
from waybill.storage.memory import MemoryStore

__all__ = ["Chore", "Commit", "Filesystem", "Limits", "Node", "NodeOptions", "OperatorLog", "ServerEngine"]

FORMATS: Final[tuple[MessageFormat, ...]] = (AMQP091, AMQP10, AMQP010)
NAME_BYTES: Final = 16
DISK_FREE_LIMIT_BYTES: Final = 64 << 20
ALARM_MARGIN: Final = 0.9
# A disk alarm ends when the free space exceeds the limit by an eighth. Below 64 KiB a check costs more than it helps.
ALARM_END_SHIFT: Final = 3
MIN_ALLOWANCE_BYTES: Final = 64 << 10
TIMEOUT_CHECK_INTERVAL_S: Final = 60.0


class NodeOptions:
    """`random_bytes(n)` returns n unpredictable bytes. `memory_limit_bytes` bounds message content held in memory.

    With less than `disk_free_limit_bytes` of free disk space, publishers must wait. `certificate_login_from`: the part
    of a TLS client's certificate that names the user (see `waybill.node.certificate`). A new store gets `first_users`
    or, with `makes_guest` and none of them, the user guest. Anonymous peers of AMQP 1.0 log in with `anonymous_login`,
    user and password, if it exists; an empty user name turns this off. Log records for operators go to `operator_log`.
    """

    def __init__(
        self, name: str, product_version: str, random_bytes: Callable[[int], bytes], memory_limit_bytes: int
    ) -> None:
        self.name = name
        self.product_version = product_version
        self.random_bytes = random_bytes
        self.memory_limit_bytes = memory_limit_bytes
        self.disk_free_limit_bytes = DISK_FREE_LIMIT_BYTES
        self.certificate_login_from = DISTINGUISHED_NAME
        self.anonymous_login = ("guest", "guest")
        self.makes_guest = True
        self.first_users: list[FirstUser] = []
        self.limits = Limits()
        self.operator_log = OperatorLog()


def _shut_down(engine: ServerEngine) -> None:
    engine.shut_down("broker forced connection closure with reason 'shutdown'")


def _disk_alarm(limit_bytes: int) -> str:
    return f"low on disk: less than {limit_bytes >> 20} MiB free"


def _tell_alarm(engine: ServerEngine) -> None:
    engine.alarm_changed()


class Node(AdministeredNode):
    """Recovers everything that `store` kept. `now` is in seconds of the caller's clock, as everywhere below."""

    def __init__(self, store: Journal | MemoryStore, options: NodeOptions, now: float) -> None:
        super().__init__()
        self._store = store
        self.runtime = Runtime(self._store, options.memory_limit_bytes)
        self.runtime.now = now
        self.runtime.operator_log = options.operator_log
        self.runtime.streams_max = options.limits.streams_max
        self.limits = options.limits
        make_detached_state(self)
        self.product_version = options.product_version
        self.name = options.name
        self.anonymous_login = options.anonymous_login
        self.virtual_hosts = {}
        self._eviction = Eviction(self.runtime, self.virtual_hosts)
        self.connections = {}
        accounts = Accounts(self.runtime.store, options.random_bytes, options.operator_log)
        self.administration = Administration(
            self, accounts, makes_guest=options.makes_guest, first_users=options.first_users
        )
        self._accounts = self.administration.accounts
        self._certificate_login_from = options.certificate_login_from
        self._next_timeout_check = now + TIMEOUT_CHECK_INTERVAL_S
        self._random_bytes = options.random_bytes
        self._restoring = ""
        # Connections that have failed, for the transport to cut.
        self.failed: list[ServerEngine] = []
        self.alarm = ""
        self._filesystem: Filesystem | None = None
        self.disk_free_limit_bytes = options.disk_free_limit_bytes
        self._memory_alarm_bytes = options.memory_limit_bytes
        self._disk_alarm = _disk_alarm(self.disk_free_limit_bytes)
        # Incomplete messages may take half of the alarm's limit, but at least one message of the largest size.
        self.runtime.held_max_bytes = max(options.memory_limit_bytes // 2, options.limits.message_size_max)
        self._is_disk_low = False
        self._disk_allowance = 0
        self._recover()

    @staticmethod
    def open(filesystem: Filesystem | None, options: NodeOptions, now: float) -> "Node":
        """A node on a data directory, or without one in memory. Raises what `Journal.open` raises."""
        if filesystem is None:
            return Node(MemoryStore(), options, now)
        journal = Journal.open(filesystem, list(FORMATS))
        try:
            node = Node(journal, options, now)
        except Exception:
            journal.close(clean=False)
            raise
        node._filesystem = filesystem
        # Backlogs are on disk: content beyond the limit is held by consumers, who need some more.
        node._memory_alarm_bytes += options.memory_limit_bytes // 2
        node.runtime.held_max_bytes = max(node._memory_alarm_bytes // 2, options.limits.message_size_max)
        return node

    def _recover(self) -> None:
        store = self.runtime.store
        try:
            waiting = self._restore_definitions()
        except (OSError, DefinitionsLost):
            raise
        except Exception as error:
            raise DefinitionsLost(f"invalid definition of {self._restoring}: {error!r}. {REMEDY}") from error
        for queue in waiting:
            self._recover_messages(queue)
        recover_detached_state(self, self.virtual_hosts)
        store.remove_unclaimed()
        if isinstance(self._store, Journal):
            self._store.report_to(self.runtime.operator_log)
            report_recovery(self._store, self.runtime.operator_log)
        self.administration.go_on_deleting()

    def _restore_definitions(self) -> list[Queue]:
        """Restore all definitions. Returns the queues whose messages are to be recovered."""
        store = self.runtime.store
        self._restoring = "users and virtual hosts"
        self.administration.recover()
        queues: list[Queue] = []
        for key, definition in store.definitions(EXCHANGE):
            self._restoring = f"exchange {key!r}"
            exchange = self._host_of(definition).restore_exchange(definition)
            if exchange.waiting is not None:
                queues.append(exchange.waiting)
        for key, definition in store.definitions(QUEUE):
            self._restoring = f"queue {key!r}"
            queues.append(self._host_of(definition).restore_queue(definition))
        for key, definition in store.definitions("binding"):
            self._restoring = f"binding {key!r}"
            self._host_of(definition).restore_binding(definition)
        return queues

    def _recover_messages(self, queue: Queue) -> None:
        store = self.runtime.store
        for stored in store.recovered(queue.id):
            queue.recover(stored)
        queue.next_sequence = max(queue.next_sequence, store.next_sequence(queue.id))
        if not queue.is_append_only:
            queue.first_sequence = queue.next_sequence

    def _host_of(self, definition: dict[str, object]) -> VirtualHost:
        return self.virtual_hosts[str(definition["virtual_host"])]

    # --- for the transport ---

    def accept(
        self, transport: object, peer_address: str, now: float, certificate: dict[str, object] | None = None
    ) -> Negotiation:
        """The engine for a new connection. `certificate`: the peer's, verified by TLS (`ssl.getpeercert`)."""
        user = certificate_user(certificate, self._certificate_login_from)
        return Negotiation(self, transport, peer_address, now, user)

    def flush(self, now: float, serve: Callable[[ServerEngine], None]) -> None:
        """`work`, then serve the connections, over as many turns as it takes until nothing is left to do."""
        self.work(now)
        while self.dirty or self.runtime.has_late_work:
            for engine in self.take_dirty():
                serve(engine)
            self.end_turn()
            self.work(now)
        self.end_turn()

    def work(self, now: float) -> None:
        """Do the work that the last input, deadline or commit has caused. Engines keep their output until `take_dirty`.

        Work beyond one turn is left (`has_late_work`) for the next one, after `end_turn`.
        """
        runtime = self.runtime
        runtime.now = now
        if self.alarm or runtime.used_bytes() > self._memory_alarm_bytes:
            self._check_alarms()
        if runtime.is_overfull():
            self._eviction.begin()
        if runtime.late or runtime.chores:
            catch_up(runtime)
        while runtime.dirty or self.confirming:
            drain(runtime)
            if self.confirming:
                self._settle_confirms()

    def _settle_confirms(self) -> None:
        confirming = self.confirming
        self.confirming = []
        done = 0
        try:
            for engine in confirming:
                done += 1
                try:
                    engine.settle_confirms()
                except Exception as error:  # noqa: BLE001 - whatever it is, it is one connection's
                    self.engine_failed(engine, error)
        finally:
            # Even if the operator log raises, the others are served.
            if done < len(confirming):
                self.confirming = confirming[done:] + self.confirming

    @property
    def has_late_work(self) -> bool:
        """Whether the turn has left work undone."""
        return self.runtime.has_late_work

    @property
    def is_turn_over(self) -> bool:
        """Whether the turn has done all that it may."""
        return self.runtime.work_left <= 0

    def end_turn(self) -> None:
        """End the turn, so that others are served. The next call of `work` continues what is left."""
        if self._filesystem is not None and self._store.pending_bytes > self._disk_allowance:
            self._look_at_disk()
        self.runtime.begin_turn()

    @property
    def has_output(self) -> bool:
        """Whether `take_dirty` has something to name."""
        return bool(self.dirty)

    @property
    def has_work(self) -> bool:
        """Whether `work` or a commit has something to do: after `take_dirty`, as that makes room for more."""
        return bool(self.dirty or self.runtime.dirty or self.confirming or self._store.has_work)

    def take_dirty(self) -> list[ServerEngine]:
        """The connections to be served by their transports now: see `ServerEngine`.

        If there is work then, `work` must follow.
        """
        dirty = self.dirty
        self.dirty = []
        done = 0
        try:
            for engine in dirty:
                done += 1
                try:
                    engine.end_batch()
                except Exception as error:  # noqa: BLE001 - see above
                    self.engine_failed(engine, error)
        except Exception:
            # An operator log that raises keeps nothing from the others.
            self.dirty = dirty[: done - 1] + dirty[done:] + self.dirty
            raise
        return dirty

    def engine_failed(self, engine: ServerEngine, error: Exception) -> None:
        """End a connection in which an exception was raised. The others continue."""
        self.failed.append(engine)
        self.runtime.operator_log.fault("a connection failed", "it was closed; other connections continue", error)

    def _each_connection(self, call: Callable[[ServerEngine], None]) -> None:
        for engine in list(self.connections):
            try:
                call(engine)
            except Exception as error:  # noqa: BLE001 - see `engine_failed`
                self.engine_failed(engine, error)

    def next_timeout(self) -> float | None:
        return self.runtime.timers.next_deadline()

    def handle_timeout(self, now: float) -> None:
        """Fire due timers, as many as a turn allows. `work` must follow."""
        runtime = self.runtime
        runtime.now = now
        runtime.begin_read()
        runtime.fire_timers()

    def shut_down(self) -> None:
        """Tell every peer that the node stops. `work` must follow."""
        self._each_connection(_shut_down)

    def begin_commit(self) -> Commit | None:
        """The next batch to write, if there is one and none is being written."""
        commit = self._store.begin_commit()
        if commit is not None and self._filesystem is not None:
            self._disk_allowance -= int(commit.size)
            if self._disk_allowance < 0:
                self._look_at_disk()
        return commit

    def end_commit(self, commit: Commit) -> None:
        """Call the waiters of a commit that was executed without an error. `work` must follow."""
        self._store.end_commit(commit)
        call_waiters(commit)
        if self.runtime.sealed:
            self.runtime.let_go_of_written()

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call back once all that was done so far is durable. `work` must follow."""
        self.runtime.store.wait(DurableCall(call), 0)

    @property
    def has_store_failed(self) -> bool:
        """Whether the store has failed: the node must stop."""
        return self._store.has_failed

    @property
    def is_unmarked(self) -> bool:
        """Whether to call `maintain` again soon, to record what is durable."""
        return self._store.is_unmarked

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for the next commit."""
        return self._store.pending_bytes

    def maintain(self, now: float) -> bool:
        """Do a small step of compaction, and check the free disk space. True if there is more to do at once."""
        self.runtime.now = now
        if self._filesystem is not None:
            self._look_at_disk()
        if now >= self._next_timeout_check:
            self._next_timeout_check = now + TIMEOUT_CHECK_INTERVAL_S
            self.runtime.begin(TimeoutCheck(self.runtime, list(self.connections), self.engine_failed))
        return self._store.maintain(now)

    def _look_at_disk(self) -> None:
        """Raise the alarm if the free space, less what waits to be written, is below the limit.

        Half of the space above the limit may be written before the next check, so no publisher outruns it.
        """
        limit = self.disk_free_limit_bytes
        left = self._free_space() - self._store.pending_bytes - limit
        self._is_disk_low = left < (limit >> ALARM_END_SHIFT if self._is_disk_low else 0)
        self._disk_allowance = max(left // 2, MIN_ALLOWANCE_BYTES)
        self.has_room_for_grace = left > -(limit // 2)
        self._store.save_space(is_needed=self._is_disk_low)
        self.runtime.disk_alarm = self._disk_alarm if self._is_disk_low else ""
        self._check_alarms()

    def _free_space(self) -> int:
        if self._filesystem is None:
            return sys.maxsize
        try:
            return self._filesystem.free_space()
        except OSError as error:
            self.runtime.operator_log.error("cannot read how much disk space is free", f"{error}; it counts as full")
            return 0

    def change_alarms(self, memory_limit_bytes: int, disk_free_limit_bytes: int) -> None:
        """Use other limits for memory and free disk space from now on. `work` must follow."""
        is_on_disk = self._filesystem is not None
        self.runtime.change_memory_limit(memory_limit_bytes)
        self._memory_alarm_bytes = memory_limit_bytes + (memory_limit_bytes // 2 if is_on_disk else 0)
        self.runtime.held_max_bytes = max(self._memory_alarm_bytes // 2, self.limits.message_size_max)
        self.disk_free_limit_bytes = disk_free_limit_bytes
        self._disk_alarm = _disk_alarm(disk_free_limit_bytes)
        if is_on_disk:
            self._look_at_disk()
        else:
            self._check_alarms()

    def _check_alarms(self) -> None:
        """Raise an alarm, or end it once there is room again by a margin."""
        limit = self._memory_alarm_bytes
        runtime = self.runtime
        # Incomplete messages alone, or with few others in memory, raise no alarm: then nothing would be read that
        # completes them. Nor do declarations alone: no client undoes them because of an alarm.
        used = int(runtime.memory_bytes) + min(int(runtime.held_bytes), limit // 4)
        used += min(int(runtime.footprint_bytes), limit // 2) + min(int(runtime.unread_bytes), limit // 4)
        if self._is_disk_low:
            alarm = self._disk_alarm
        elif runtime.memory_bytes > limit >> 4 and (used > limit or (self.alarm and used > limit * ALARM_MARGIN)):
            alarm = f"low on memory: messages take more than {limit >> 20} MiB"
            self._eviction.begin()
        else:
            alarm = ""
        if alarm != self.alarm:
            if alarm:
                runtime.operator_log.warning("alarm", f"{alarm}; blocking publishers")
            else:
                runtime.operator_log.info("alarm over", f"unblocking publishers; the node was {self.alarm}")
            self.alarm = alarm
            self._each_connection(_tell_alarm)

    def close(self, *, clean: bool = True) -> None:
        """Close the store: write and sync all pending records. Nothing may be published or delivered any more.

        Without `clean` nothing more is written, as in a crash.
        """
        if not clean:
            self._store.close(clean=False)
            return
        release_detached_state(self)
        runtime = self.runtime
        while runtime.has_late_work:
            runtime.begin_turn()
            catch_up(runtime)
        self._store.close(clean=True, redelivered=self._redelivered())

    def _redelivered(self) -> dict[int, list[int]]:
        """The sequences, by queue id, of ready messages that were delivered before: a clean stop records them."""
        found: dict[int, list[int]] = {}
        for virtual_host in self.virtual_hosts.values():
            for queue in virtual_host.queues.values():
                sequences = queue.redelivered_sequences()
                if sequences:
                    found[int(queue.id)] = sequences
        return found

    # --- for the engines ---

    def authenticate(self, user: str, password: str, peer_address: str) -> User | None:
        before = self._accounts.slow_checks
        found = self._accounts.authenticate(user, password, peer_address, self.runtime.now)
        self.runtime.logins_left -= self._accounts.slow_checks - before
        return found

    def user_proved(self, user: str, peer_address: str) -> User | None:
        return self._accounts.user_proved(user, peer_address)

    def authenticate_anonymous(self, peer_address: str) -> User | None:
        name, password = self.anonymous_login
        return self._accounts.authenticate_anonymous(name, password, peer_address)

    def scram_finished(self, user: str, peer_address: str, *, is_proved: bool) -> User | None:
        return self._accounts.scram_finished(user, peer_address, self.runtime.now, is_proved=is_proved)

    def scram_keys(self, user: str) -> ScramKeys:
        return self._accounts.scram_keys(user)

    def check_connection_limits(self, user: User, virtual_host: str) -> None:
        runtime = self.runtime
        if runtime.footprint_bytes > runtime.footprint_limit_bytes:
            raise NotAllowed(f"declarations and connections already take {runtime.footprint_bytes >> 20} MiB")
        self.administration.check_connection_limits(user, virtual_host)

    def virtual_host(self, name: str) -> VirtualHost | None:
        found = self.virtual_hosts.get(name)
        return None if found is None or found.is_ending else found

    def random_name(self, prefix: str) -> str:
        return prefix + self._random_bytes(NAME_BYTES).hex()

    def opened(self, engine: ServerEngine) -> None:
        self.connections[engine] = None
        self.runtime.counters.connections_opened += 1

    def lost(self, engine: ServerEngine) -> None:
        self.connections.pop(engine, None)
