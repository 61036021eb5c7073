"""What a server engine asks of the node that it serves, and what it offers to it."""

from mypy_extensions import mypyc_attr

from waybill.model.permission import Permission
from waybill.model.runtime import Runtime
from waybill.model.store import CommitWaiter
from waybill.model.virtual_host import VirtualHost


@mypyc_attr(allow_interpreted_subclasses=True)
class Output:
    """The transport of one connection, as its engine sees it."""

    def flush(self) -> None:
        """Write what `data_to_send` gives, close if the engine is closed, watch its `next_timeout`."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        raise NotImplementedError

    def resume_reading(self) -> None:
        raise NotImplementedError


class Limits:
    """What a peer may ask of a connection. Sizes are in bytes, times in seconds."""

    def __init__(self) -> None:
        self.frame_max = 131_072
        self.channel_max = 2047
        self.heartbeat_s = 60
        self.handshake_timeout_s = 10.0
        self.close_timeout_s = 5.0
        self.message_size_max = 128 << 20
        self.consumers_per_channel_max = 65_536
        self.output_high_water = 4 << 20


class User:
    """Somebody who has proved who they are, with their permissions by virtual host."""

    def __init__(self, name: str, permissions: dict[str, Permission]) -> None:
        self.name = name
        self.permissions = permissions


class ServerEngine(CommitWaiter):
    """A server-side connection. The node calls `flush` once it is marked dirty and the queues are drained."""

    def __init__(self) -> None:
        self.is_dirty = False

    def flush(self) -> None:
        raise NotImplementedError

    def alarm_changed(self) -> None:
        """`Host.alarm` was raised or is over."""
        raise NotImplementedError

    def settle_confirms(self) -> None:
        """Confirm, or wait to confirm, what was published since the last call."""
        raise NotImplementedError


class Host:
    """The node. Everything is in one thread: an engine may call it at any time while it is fed.

    `alarm` tells why publishers must wait (the disk is nearly full, or memory), empty if they need not.
    """

    alarm: str

    runtime: Runtime
    limits: Limits
    product_version: str
    name: str

    def authenticate(self, user: str, password: str, peer_address: str) -> User | None:
        """The user of that name if this is their password and they may come from there, or None."""
        raise NotImplementedError

    def virtual_host(self, name: str) -> VirtualHost | None:
        raise NotImplementedError

    def random_name(self, prefix: str) -> str:
        """A name that nobody else has or can guess."""
        raise NotImplementedError

    def mark_dirty(self, engine: ServerEngine) -> None:
        """`engine` has output: `flush` it at the end of this batch of input."""
        raise NotImplementedError

    def mark_confirming(self, engine: ServerEngine) -> None:
        """`engine` took publishes to be confirmed: call its `settle_confirms` before the commit of this batch."""
        raise NotImplementedError

    def opened(self, engine: ServerEngine) -> None:
        """The connection is open."""
        raise NotImplementedError

    def lost(self, engine: ServerEngine) -> None:
        """The connection is gone for good."""
        raise NotImplementedError
