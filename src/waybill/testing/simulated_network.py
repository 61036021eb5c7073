"""A network without sockets: connections between engines that cut, delay, stall and break, all from one random source.

    client engine - SimulatedPump - Pipe ->  SimulatedPump - server engine
                                  <- Pipe -

A `SimulatedPump` has the methods of `transport.pump.Pump`, on virtual time. Like TCP, a pipe delivers in order and
loses nothing while the connection is open, and pieces do not correspond to writes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from waybill.testing.virtual_clock import Event, VirtualClock

LINGER_S: Final = 1.0
FOREVER_S: Final = 1e9


class Engine(Protocol):
    """A connection's state machine, of either role."""

    @property
    def closed(self) -> bool: ...

    def receive_data(self, data: bytes, now: float) -> None: ...

    def data_to_send(self) -> bytes: ...

    def connection_lost(self, now: float) -> None: ...

    def next_timeout(self) -> float | None: ...

    def handle_timeout(self, now: float) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self, now: float) -> None: ...


@dataclass(frozen=True)
class Conditions:
    """How one connection behaves: pieces of at most `piece_bytes`, each at most `delay_s` after the previous one.

    A sender's engine is asked to pause when `high_water_bytes` are in flight. `cut_chance`: the probability that a
    piece is cut at a random place.
    """

    piece_bytes: int = 1 << 16
    delay_s: float = 0.001
    high_water_bytes: int = 1 << 16
    cut_chance: float = 0.1


def random_conditions(random: Random) -> Conditions:
    """Mostly a good network, sometimes a very bad one."""
    return Conditions(
        piece_bytes=random.choice((60, 700, 1 << 16, 1 << 16, 1 << 16, 1 << 16)),
        delay_s=random.choice((0.0001, 0.001, 0.02)),
        high_water_bytes=random.choice((1 << 10, 1 << 14, 1 << 20)),
        cut_chance=random.choice((0.0, 0.1, 0.5)),
    )


class SimulatedPump:
    """One end of a connection. It drives the engine that `engine_factory(pump)` makes once it is open."""

    engine: Engine

    def __init__(
        self,
        clock: VirtualClock,
        engine_factory: Callable[["SimulatedPump"], Engine],
        after_receive: Callable[[], None] | None = None,
        on_lost: Callable[["SimulatedPump"], None] | None = None,
    ) -> None:
        self._clock = clock
        self._engine_factory = engine_factory
        self._after_receive = after_receive or self.flush
        self._on_lost = on_lost
        self._timer: Event | None = None
        self._outgoing: Pipe | None = None
        self._incoming: Pipe | None = None
        self.closing = False
        self.lost = False
        self.peer_address = "127.0.0.1:40000"
        self.local_address = "127.0.0.1:5672"
        self.peer_certificate = None

    @property
    def connected(self) -> bool:
        return self._outgoing is not None and not self.closing and not self.lost

    def open(self, incoming: "Pipe", outgoing: "Pipe") -> None:
        """The connection is open."""
        self._incoming, self._outgoing = incoming, outgoing
        self.engine = self._engine_factory(self)
        self._after_receive()
        self.flush()

    def flush(self) -> None:
        """Send the engine's output, close the connection if the engine is closed, and set its timer."""
        if self._outgoing is None or self.closing or self.lost:
            return
        data = self.engine.data_to_send()
        if data:
            self._outgoing.write(data)
        if self.engine.closed:
            self.closing = True
            self._disarm()
            self._outgoing.finish()
            return
        at = self.engine.next_timeout()
        if at is not None and (self._timer is None or at < self._timer.at):
            self._disarm()
            self._timer = self._clock.call_at(at, self._fire)

    def pause_reading(self) -> None:
        if self._incoming is not None:
            self._incoming.pause()

    def resume_reading(self) -> None:
        if self._incoming is not None:
            self._incoming.resume()

    def abort(self) -> None:
        """Drop the connection with everything in flight."""
        if self._outgoing is not None and not self.lost:
            self._outgoing.connection.reset()

    def receive(self, data: bytes) -> None:
        if self.closing or self.lost:
            return
        self.engine.receive_data(data, self._clock.now())
        self._after_receive()

    def receive_end(self) -> None:
        """The other side has ended its output: close this side, too."""
        if self.lost:
            return
        if not self.closing:
            self.flush()
        if self._outgoing is not None:
            self._outgoing.finish()
        self.lose()

    def lose(self) -> None:
        """The connection is lost."""
        if self.lost:
            return
        self.lost = True
        self._disarm()
        self.engine.connection_lost(self._clock.now())
        self._after_receive()
        if self._on_lost is not None:
            self._on_lost(self)

    def vanish(self) -> None:
        """The process of this end died: nothing more happens here."""
        self.lost = True
        self._disarm()

    def pause_writing(self) -> None:
        if not self.closing and not self.lost:
            self.engine.pause_writing()

    def resume_writing(self) -> None:
        if not self.closing and not self.lost:
            self.engine.resume_writing(self._clock.now())
            self._after_receive()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self.lost or self.closing:
            return
        at = self.engine.next_timeout()
        if at is not None and at <= self._clock.now():
            self.engine.handle_timeout(self._clock.now())
            self._after_receive()
        self.flush()


class Pipe:
    """One direction of a connection."""

    def __init__(self, connection: "SimulatedConnection", sender: SimulatedPump, receiver: SimulatedPump) -> None:
        self.connection = connection
        self._sender = sender
        self._receiver = receiver
        self._data = bytearray()
        self._event: Event | None = None
        self._stalled_until = 0.0
        self._reading = True
        self._writing = True
        self._finished = False
        self._delivered_end = False

    def write(self, data: bytes) -> None:
        if self._finished:
            return
        self._data += data
        if self._writing and len(self._data) > self.connection.conditions.high_water_bytes:
            self._writing = False
            self._sender.pause_writing()
        self._schedule()

    def finish(self) -> None:
        """End the output after the written data."""
        if not self._finished:
            self._finished = True
            self._schedule()
            if self.connection.has_vanished:
                # No answer: eventually the system gives up.
                self.connection.clock.call_later(LINGER_S, self._sender.lose)

    def pause(self) -> None:
        self._reading = False

    def resume(self) -> None:
        self._reading = True
        self._schedule()

    def stall(self, seconds: float) -> None:
        """Deliver nothing for a while."""
        self._stalled_until = self.connection.clock.now() + seconds

    def cut(self) -> None:
        """Drop data in flight, and deliver nothing more."""
        self._data.clear()
        self._finished = self._delivered_end = True
        if self._event is not None:
            self._event.cancel()
            self._event = None

    def _schedule(self) -> None:
        if self._event is not None or self._delivered_end or not (self._data or self._finished):
            return
        connection = self.connection
        clock = connection.clock
        at = clock.now() + connection.random.random() * connection.conditions.delay_s
        self._event = clock.call_at(max(self._stalled_until, at), self._deliver)

    def _deliver(self) -> None:
        self._event = None
        connection = self.connection
        if self._stalled_until > connection.clock.now():
            self._schedule()
            return
        data = self._data
        if data:
            if not self._reading:
                return
            conditions = connection.conditions
            size = min(len(data), conditions.piece_bytes)
            if size > 1 and connection.random.random() < conditions.cut_chance:
                size = connection.random.randint(1, size)
            piece = bytes(data[:size])
            del data[:size]
            if not self._writing and len(data) <= conditions.high_water_bytes // 4:
                self._writing = True
                self._sender.resume_writing()
            self._receiver.receive(piece)
        elif self._finished and not self._delivered_end:
            self._delivered_end = True
            self._receiver.receive_end()
        self._schedule()


class SimulatedConnection:
    """A connection between two pumps, open from the start."""

    def __init__(
        self, clock: VirtualClock, random: Random, conditions: Conditions, client: SimulatedPump, server: SimulatedPump
    ) -> None:
        self.clock = clock
        self.random = random
        self.conditions = conditions
        self.client = client
        self.server = server
        self.has_vanished = False
        self._upward = Pipe(self, client, server)
        self._downward = Pipe(self, server, client)
        server.open(self._upward, self._downward)
        client.open(self._downward, self._upward)

    @property
    def is_over(self) -> bool:
        return self.client.lost and self.server.lost

    def reset(self) -> None:
        """Both ends lose the connection, one a little later, and all data in flight."""
        self._upward.cut()
        self._downward.cut()
        first, second = self.client, self.server
        if self.random.random() < 0.5:
            first, second = second, first
        self.clock.call_later(self.random.random() * self.conditions.delay_s, first.lose)
        self.clock.call_later(self.random.random(), second.lose)

    def half_close(self) -> None:
        """The client closes its output, after the data it has sent."""
        self._upward.finish()

    def stall(self, seconds: float) -> None:
        """Stall one direction or both for a while."""
        way = self.random.randrange(3)
        if way != 0:
            self._upward.stall(seconds)
        if way != 1:
            self._downward.stall(seconds)

    def vanish(self) -> None:
        """The client's machine died: it sends nothing more, and the server is not notified."""
        self.has_vanished = True
        self.client.vanish()
        self._upward.cut()
        self._downward.stall(FOREVER_S)

    def server_died(self) -> None:
        """The server's process died. The client notices a little later, and receives nothing before."""
        self.server.vanish()
        self._upward.cut()
        self._downward.cut()
        self.clock.call_later(self.random.random() * self.conditions.delay_s, self.client.lose)
