"""The common part of server connections: input in turns, output that waits for the disk, timeouts, pauses.

    receive_data --> `take` (the protocol) --> out --> end_batch: hold until a commit, or --> data_to_send
                        |
                        +-- what it could not take stays in `_rest` until the next turn, or the next read

A protocol derives from `ServerConnection` and implements what raises `NotImplementedError` here. The class has native
attributes, so that the compiled hot paths of the protocols read them without a lookup.

Reading stops for reasons that overlap, so each is a bit of `_pauses`; the peer is read again when none is left.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.engine.access import check_permission, check_topic
from waybill.engine.connection_state import CLOSED, CLOSING, ENDED, LEAVING, OPEN, OPENED, SASL, TRANSITIONS
from waybill.engine.held_memory import SPARE_OUTPUT_BYTES, HeldMemory
from waybill.engine.host import Host, User
from waybill.engine.server_engine import Confirming, ServerEngine
from waybill.model.runtime import Chore
from waybill.model.timers import Timer
from waybill.model.virtual_host import VirtualHost

KEPT_OUTPUT_BYTES: Final = 1 << 20
"""A larger output buffer is not reused."""
UNREAD_LIMIT: Final = 16 << 20
"""Deliveries stop long before. Only a peer that keeps sending requests and never reads causes this many replies."""

PACE_S: Final = 0.01
LARGE_READ_BYTES: Final = 32 << 10
SMALL_READ_BYTES: Final = 4096
SMALL_UNITS: Final = 256
"""A read of at most this size need not wait for the next turn, unless a transaction of more units may end with it."""

# Why a connection is not read.
PACED: Final = 1
"""It publishes faster than the consumers of its queues, or the disk, take."""
WAITS_FOR_TURN: Final = 2
"""The input that was read exceeds the turn (`waybill.model.runtime`)."""
CHOKED: Final = 4
"""More than `UNREAD_LIMIT` waits for the peer to read it."""
BLOCKED: Final = 8
"""There is an alarm (`Host.alarm`)."""

# The log's explanation for a socket that ends in one of these states.
_LOST_WHILE: Final = {OPEN: ", without a close", CLOSING: ", without an answer to our close"}


class ServerConnection(ServerEngine):
    """One peer.

    `is_stalled`: much output is unsent, so the peer gets no more messages until that is written. `is_over`: everything
    that the connection held has been returned. After `receive_timeout_s` without input the connection is closed; after
    `send_interval_s` without output a heartbeat is sent; 0: never.
    """

    def __init__(
        self, host: Host, transport: object, peer_address: str, now: float, certificate_user: str, state: str
    ) -> None:
        super().__init__(transport)
        self.host = host
        self.peer_address = peer_address
        self.certificate_user = certificate_user
        self.state = state
        self.user = User("", {})
        self.out = BytesWriter()
        self.held = HeldMemory(host.runtime, host.limits.held_per_connection_max)
        self.is_stalled = False
        self.is_over = False
        self.output_high_water: i64 = host.limits.output_high_water
        self.receive_timeout_s: float = 0.0
        self.send_interval_s: float = 0.0
        self._virtual_host: VirtualHost | None = None
        self._takes_input = True
        self._rest = b""
        self._pauses: i64 = 0
        # Pauses of reading during which the peer's silence is ours.
        self._excuses: i64 = CHOKED | BLOCKED
        self._unread: i64 = 0
        self._is_transport_full = False
        self._is_held = False
        self._wants_hold = False
        self._hold_mark: i64 = 0
        self._confirming: list[Confirming] = []
        self._received_at: float = now
        self._sent_at: float = now
        self._deadline: float = now + host.limits.handshake_timeout_s
        # For operators.
        self.protocol = ""
        self.mechanism = ""
        self.connected_at: float = now
        self.received_octets: i64 = 0
        self.received_count: i64 = 0
        self.sent_octets: i64 = 0
        self.sent_count: i64 = 0

    # --- what a protocol does ---

    def take(self, data: bytes) -> i64:
        """Take whole frames while the turn has work left. Returns the offset of the first octet not taken."""
        raise NotImplementedError

    def has_read(self, size: i64) -> None:
        """Count bytes that were read, and taken as far as the turn allows."""

    def has_done_tasks(self) -> bool:
        """Continue the requests of earlier frames. False if that takes another turn."""
        raise NotImplementedError

    def prepared_units(self) -> i64:
        """The units of the largest transaction that is open: its end is one step."""
        return 0

    def wake_consumers(self) -> None:
        """Deliveries may continue."""
        raise NotImplementedError

    def give_back(self) -> None:
        """The connection has ended: requeue its deliveries and delete its exclusive queues."""
        raise NotImplementedError

    def not_open(self) -> Exception:
        """The error for a request on a connection that is not open."""
        raise NotImplementedError

    def send_heartbeat(self) -> None:
        raise NotImplementedError

    def peer_is_silent(self) -> None:
        """Close the connection: nothing was received for `receive_timeout_s`."""
        raise NotImplementedError

    def fail_with_internal_error(self) -> None:
        """Close the connection, and report an internal error to the peer."""
        raise NotImplementedError

    # --- the state ---

    @property
    def closed(self) -> bool:
        return self.state == CLOSED and not self._is_held

    def advance(self, event: str) -> bool:
        """Change the state by the table. False, and nothing changes, if it does not list the event."""
        state = TRANSITIONS[self.state].get(event)
        if state is None:
            return False
        self.state = state
        if state in {CLOSING, LEAVING, CLOSED}:
            self._takes_input = state == CLOSING
            self._deadline = self._received_at + self.host.limits.close_timeout_s
            if not self.is_over:
                # Nothing is delivered from now on.
                self.is_over = True
                self.is_stalled = True
                self.give_back()
            self.host.mark_dirty(self)
        return True

    def opened(self, virtual_host: VirtualHost) -> None:
        self._virtual_host = virtual_host
        self.advance(OPENED)
        self.host.opened(self)
        self.host.runtime.operator_log.info("connection opened", self.describe(), self.user.name, self.peer_address)

    def describe(self) -> str:
        """Return a description of the peer for the log."""
        virtual_host = self._virtual_host
        where = "" if virtual_host is None else f", vhost {virtual_host.name!r}"
        who = f", user {self.user.name!r}" if self.user.name else ""
        return f"{self.peer_address}{who}{where}"

    def report(self, event: str, reason: str, *, is_expected: bool = False) -> None:
        """Log why something of this connection ends. `is_expected`: the operator need not act."""
        log = self.host.runtime.operator_log
        detail = f"{self.describe()}: {reason}"
        if is_expected:
            log.info(event, detail, self.user.name, self.peer_address)
        else:
            log.warning(event, detail, self.user.name, self.peer_address)

    def fail_unexpectedly(self, error: Exception) -> None:
        """The last resort for an unexpected error: close this connection, and leave all others unaffected."""
        try:
            self.fail_with_internal_error()
        except Exception:  # noqa: BLE001 - the first error is reported; this one follows from it
            self.advance(ENDED)
        self.host.runtime.operator_log.fault(
            "a connection failed", f"the connection from {self.peer_address} is closed; the others go on", error
        )

    # --- input ---

    def receive_data(self, data: bytes, now: float) -> None:
        if not self._takes_input:
            return
        self._received_at = now
        runtime = self.host.runtime
        runtime.now = now
        size = len(data)
        self.received_octets += size
        self.received_count += 1
        if self._rest:
            data = self._rest + data if data else self._rest
            self._rest = b""
        runtime.begin_read()
        if self._must_wait(size, len(data)):
            runtime.work_left = 0
        try:
            end = self.take(data)
        except Exception as error:  # noqa: BLE001 - see `fail_unexpectedly`
            end = len(data)
            self.fail_unexpectedly(error)
        if end < len(data) and self._takes_input:
            self._rest = data[end:]
            if runtime.work_left <= 0:
                self.wait_for_turn()
        if self._takes_input:
            self.has_read(size)
            if size >= LARGE_READ_BYTES and runtime.is_hard_pressed():
                # Otherwise all publishers would have to wait soon.
                self.pace()

    def _must_wait(self, fresh: i64, size: i64) -> bool:
        """Whether input of `size` octets waits for the next turn, since others have used up this one.

        `fresh`: how many of the octets were just read. Input that has waited for its turn is taken.
        """
        runtime = self.host.runtime
        if runtime.logins_left <= 0 and self._is_logging_in():
            # Checking passwords takes long.
            return True
        if fresh == 0 or not runtime.is_overdrawn():
            return False
        return size > SMALL_READ_BYTES or self.prepared_units() > SMALL_UNITS

    def _is_logging_in(self) -> bool:
        return self.state == SASL

    def pause_reading(self, reason: i64) -> None:
        self._pauses |= reason
        self._set_reading_paused(paused=True)

    def pace(self) -> None:
        """Pause reading for a moment.

        Without it the backlog of working consumers would grow, only to be written to disk and read back. The pause is
        always short, so a queue whose consumers hang still fills up.
        """
        if not self._pauses & PACED:
            self.pause_reading(PACED)
            runtime = self.host.runtime
            runtime.timers.schedule(runtime.now + PACE_S, _Pace(self))

    def resume_reading(self, reason: i64) -> None:
        """Read again, unless there is another reason not to; first process what was read already."""
        if self._pauses & reason & self._excuses:
            # The peer may have sent something that was not read.
            self._received_at = self.host.runtime.now
        self._pauses &= ~reason
        if self._pauses == 0:
            if self._rest:
                self.receive_data(b"", self.host.runtime.now)
            if self._pauses == 0:
                self._set_reading_paused(paused=False)

    def _set_reading_paused(self, *, paused: bool) -> None:
        if self.is_reading_paused != paused:
            self.is_reading_paused = paused
            self.host.mark_dirty(self)

    def wait_for_turn(self) -> None:
        """Continue in the next turn with what was read already."""
        if not self._pauses & WAITS_FOR_TURN:
            self.pause_reading(WAITS_FOR_TURN)
            self.host.runtime.go_on_with(_Turn(self))

    def take_turn(self) -> None:
        # The request of this frame was accepted, so no alarm and no pause of reading holds it up.
        self._pauses &= ~WAITS_FOR_TURN
        try:
            is_done = self.has_done_tasks()
        except Exception as error:  # noqa: BLE001 - see `fail_unexpectedly`
            is_done = True
            self.fail_unexpectedly(error)
        if is_done:
            self.resume_reading(WAITS_FOR_TURN)
        else:
            self.wait_for_turn()

    # --- output ---

    def send(self, octets: bytes) -> None:
        self.out.write(octets)
        if not self.is_dirty:
            self.host.mark_dirty(self)

    def hold(self) -> None:
        """Hold all output back until everything stored so far is durable."""
        self._wants_hold = True
        self.host.mark_dirty(self)

    def committed(self, mark: i64) -> None:
        """The commit that `hold` waited for is durable: release the output."""
        if mark == self._hold_mark:
            self._is_held = False
            self.host.mark_dirty(self)

    def end_batch(self) -> None:
        self.is_dirty = False
        if self._wants_hold:
            self._wants_hold = False
            self._is_held = True
            self._hold_mark += 1
            self.host.runtime.store.wait(self, self._hold_mark)

    def spare_output(self) -> None:
        """The connection begins to consume: limit its output if other peers do not read theirs."""
        if self.held.is_output_scarce:
            self.output_high_water = min(self.output_high_water, SPARE_OUTPUT_BYTES)
            self.has_tight_output = True

    def data_to_send(self) -> bytes:
        if self._is_held:
            return b""
        out = self.out
        size = len(out)
        if size == 0:
            return b""
        data = out.getvalue()
        if size > KEPT_OUTPUT_BYTES:
            self.out = BytesWriter()
        else:
            out.truncate(0)
        self._sent_at = self.host.runtime.now
        self.sent_octets += size
        self.sent_count += 1
        if self._is_transport_full:
            self._unread += size
            if self._unread > UNREAD_LIMIT and not self._pauses & CHOKED:
                self.pause_reading(CHOKED)
        elif self.is_stalled:
            self._unstall()
        return data

    def pause_writing(self) -> None:
        self._is_transport_full = self.is_stalled = True
        self.held.transport_is_full()

    def resume_writing(self, now: float) -> None:
        self._is_transport_full = False
        self.held.transport_has_room()
        self._unread = 0
        if self._pauses & CHOKED:
            self._received_at = now
            self.resume_reading(CHOKED)
        self._unstall()

    def _unstall(self) -> None:
        if not self.is_over:
            self.is_stalled = False
            self.wake_consumers()

    def confirming(self, confirming: Confirming) -> None:
        """Call its `settle_confirms` before the commit of this batch of input."""
        if not self._confirming:
            self.host.mark_confirming(self)
        self._confirming.append(confirming)

    def settle_confirms(self) -> None:
        waiting = self._confirming
        self._confirming = []
        for confirming in waiting:
            try:
                confirming.settle_confirms()
            except Exception as error:  # noqa: BLE001 - see `fail_unexpectedly`
                self.fail_unexpectedly(error)

    # --- time ---

    def connection_lost(self, now: float) -> None:
        if self._virtual_host is not None:
            how = _LOST_WHILE.get(self.state, "")
            self.host.runtime.operator_log.info(
                "connection ended", f"{self.describe()}{how}", self.user.name, self.peer_address
            )
        self.advance(ENDED)
        self.held.lost()
        counters = self.host.runtime.counters
        counters.received_octets += self.received_octets
        counters.sent_octets += self.sent_octets
        self.host.lost(self)

    def next_timeout(self) -> float | None:
        if self.state == CLOSED:
            return None
        if self.state != OPEN:
            return self._deadline
        at: float = 0.0
        if self.receive_timeout_s > 0.0 and not self._pauses & self._excuses:
            at = self._received_at + self.receive_timeout_s
        if self.send_interval_s > 0.0:
            send_at = self._sent_at + self.send_interval_s
            at = send_at if at == 0.0 else min(at, send_at)
        return at if at > 0.0 else None

    def handle_timeout(self, now: float) -> None:
        self.host.runtime.now = now
        if self.state != OPEN:
            if now >= self._deadline:
                if self.state not in {CLOSING, LEAVING, CLOSED}:
                    self.report("login timed out", f"it took more than {self.host.limits.handshake_timeout_s:g} s")
                self.advance(ENDED)
            return
        if (
            self.receive_timeout_s > 0.0
            and now >= self._received_at + self.receive_timeout_s
            and not self._pauses & self._excuses
        ):
            self.peer_is_silent()
        elif self.send_interval_s > 0.0 and now >= self._sent_at + self.send_interval_s:
            self._sent_at = now
            self.send_heartbeat()

    # --- who the peer is, and what it may do ---

    @property
    def virtual_host(self) -> VirtualHost:
        virtual_host = self._virtual_host
        if virtual_host is None:
            raise self.not_open()
        return virtual_host

    @property
    def user_name(self) -> str:
        return self.user.name

    def check_permission(self, action: str, kind: str, name: str) -> None:
        """Raises `AccessRefused` unless this connection's user may do `action`."""
        check_permission(self.user, self.virtual_host, action, kind, name)

    def check_topic(self, action: str, exchange_name: str, routing_key: str) -> None:
        """Raises `AccessRefused` unless this connection's user may use the routing key at that exchange."""
        check_topic(self.user, self.virtual_host, action, exchange_name, routing_key)


class _Pace(Timer):
    """The end of a pause."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    def fire(self, now: float) -> None:
        self._connection.resume_reading(PACED)


class _Turn(Chore):
    """The turn of a connection that has more to do."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    def work(self) -> bool:
        self._connection.take_turn()
        return True
