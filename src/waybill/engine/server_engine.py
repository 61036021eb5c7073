"""`ServerEngine`: a server-side connection as the transport and the node see it."""

from waybill.model.store import CommitWaiter
from waybill.model.virtual_host import VirtualHost


class ServerEngine(CommitWaiter):
    """A server-side connection. The node calls `flush` once it is marked dirty and the queues are drained."""

    def __init__(self) -> None:
        self.is_dirty = False

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

    def flush(self) -> None:
        raise NotImplementedError

    def alarm_changed(self) -> None:
        """`Host.alarm` was raised or is over."""
        raise NotImplementedError

    def check_timeouts(self, now: float) -> None:
        """Take back deliveries held for longer than `Limits.consumer_timeout_s`: 0-9-1 closes their channel."""
        raise NotImplementedError

    def shut_down(self, reason: str) -> None:
        """The node stops: tell the peer, and wait for its answer."""
        raise NotImplementedError

    def settle_confirms(self) -> None:
        """Confirm, or wait to confirm, what was published since the last call."""
        raise NotImplementedError
