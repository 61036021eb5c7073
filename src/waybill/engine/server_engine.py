"""`ServerEngine`: a server-side connection as the transport and the node see it. It never calls them for its output."""

from waybill.model.store import CommitWaiter
from waybill.model.virtual_host import VirtualHost


class Confirming(CommitWaiter):
    """A channel or session: it collects publishes and confirms them once a batch of input is processed."""

    def settle_confirms(self) -> None:
        raise NotImplementedError


class ServerEngine(CommitWaiter):
    """A server-side connection.

    An engine takes bytes and gives bytes. Once it is marked dirty and the queues are drained, the node calls
    `end_batch` and names it to whoever runs the node, who serves it: takes `data_to_send`, closes if it is `closed`,
    watches its `next_timeout`, and reads on or not (`is_reading_paused`).

    `transport`: used by the transport to find the connection; the engine ignores it. `has_tight_output`: keep little
    output for a peer that does not read.
    """

    def __init__(self, transport: object) -> None:
        self.transport = transport
        self.is_dirty = False
        self.is_reading_paused = False
        self.has_tight_output = False

    # --- for the transport: see `transport.pump.Engine` ---

    @property
    def closed(self) -> bool:
        raise NotImplementedError

    def receive_data(self, data: bytes, now: float) -> None:
        raise NotImplementedError

    def data_to_send(self) -> bytes:
        raise NotImplementedError

    def connection_lost(self, now: float) -> None:
        raise NotImplementedError

    def next_timeout(self) -> float | None:
        raise NotImplementedError

    def handle_timeout(self, now: float) -> None:
        raise NotImplementedError

    def pause_writing(self) -> None:
        raise NotImplementedError

    def resume_writing(self, now: float) -> None:
        raise NotImplementedError

    # --- for the node ---

    @property
    def virtual_host(self) -> VirtualHost:
        """Of an open connection."""
        raise NotImplementedError

    @property
    def user_name(self) -> str:
        raise NotImplementedError

    def end_batch(self) -> None:
        """The batch of input is processed. Its output may wait for a commit."""
        raise NotImplementedError

    def alarm_changed(self) -> None:
        """`Host.alarm` was raised or cleared."""
        raise NotImplementedError

    def check_timeouts(self, now: float) -> None:
        """Take back deliveries held for longer than `Limits.consumer_timeout_s`: 0-9-1 closes their channel."""
        raise NotImplementedError

    def shut_down(self, reason: str) -> None:
        """The node stops: tell the peer, and wait for its answer."""
        raise NotImplementedError

    def settle_confirms(self) -> None:
        """Confirm publishes since the last call, or let their confirms wait."""
        raise NotImplementedError
