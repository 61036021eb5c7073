"""The interface of a node for its server engines. That of an engine is in `server_engine`."""

from waybill.engine.amqp010.sessions import Sessions
from waybill.engine.amqp10.termini import DURABLE_PER_USER_MAX, KEPT_PER_USER_MAX, Termini
from waybill.engine.scram import ScramKeys
from waybill.engine.server_engine import ServerEngine
from waybill.model.branches import Branches
from waybill.model.permission import Permission, TopicPermission
from waybill.model.runtime import Runtime
from waybill.model.transaction import UNITS_MAX
from waybill.model.virtual_host import VirtualHost


class Limits:
    """Limits on a peer. Sizes are in bytes, times in seconds.

    `consumer_timeout_s`: how long a delivery may stay unsettled; 0: unlimited.
    `unsettled_per_channel_max`: the unsettled deliveries of a consumer without a prefetch count.
    `tls_connections_max`: connections with TLS, in any state.
    `handshakes_max`: connections beyond `connections_max` that may log in, or learn that there are too many.
    `held_per_connection_max`: the memory of a connection's incomplete bodies and transactions.
    `transaction_units_max`: the work that the end of one transaction takes.
    `links_per_connection_max`: links of AMQP 1.0.
    `settling_per_connection_max`: deliveries from a peer of AMQP 1.0 that have their outcome and are not settled.
    `kept_links_per_user_max`: links of AMQP 1.0 that are detached, or will outlive their connection.
    `durable_links_per_user_max`: those of them that are durable.

    `is_strict_amqp10`: enforce rules of AMQP 1.0 that RabbitMQ does not. A durable message is refused if a queue would
    lose it with the node (3.2.1), and so is an annotation whose name is neither known nor begins with `x-opt` (3.2.10).
    A dead letter records why a receiver rejected it, and how often it was delivered (3.4.3).
    `auto_creates_queues`: an address of AMQP 1.0 that names no queue creates one.
    """

    def __init__(self) -> None:
        self.frame_max = 131_072
        self.channel_max = 2047
        self.heartbeat_s = 60
        self.handshake_timeout_s = 10.0
        self.close_timeout_s = 5.0
        self.message_size_max = 32 << 20
        self.consumers_per_channel_max = 65_536
        self.unsettled_per_channel_max = 1 << 18
        self.consumer_timeout_s = 1800.0
        self.connections_max = 65_536
        self.tls_connections_max = 3000
        self.handshakes_max = 1024
        self.streams_max = 65_536
        self.queues_per_virtual_host_max = 200_000
        self.exchanges_per_virtual_host_max = 200_000
        self.is_strict_amqp10 = False
        self.auto_creates_queues = False
        self.output_high_water = 512 << 10
        self.held_per_connection_max = 128 << 20
        self.transaction_units_max = UNITS_MAX
        self.links_per_connection_max = 4096
        self.settling_per_connection_max = 1 << 18
        self.kept_links_per_user_max = KEPT_PER_USER_MAX
        self.durable_links_per_user_max = DURABLE_PER_USER_MAX


class User:
    """An authenticated user. Changes also apply to open connections.

    Permissions are by virtual host, topic permissions by virtual host and exchange. `channel_max`: how many channels
    each connection of the user may open; negative: only the general limit applies.
    """

    def __init__(self, name: str, permissions: dict[str, Permission]) -> None:
        self.name = name
        self.permissions = permissions
        self.topic_permissions: dict[tuple[str, str], TopicPermission] = {}
        self.tags: tuple[str, ...] = ()
        self.channel_max = -1


class Host:
    """The node. Everything is in one thread: an engine may call it at any time while it is fed.

    `alarm` tells why publishers must wait (the disk is nearly full, or memory), empty if they need not.
    """

    alarm: str
    has_room_for_grace: bool = True
    """Whether a publisher may continue briefly after it was notified of an alarm: not if the disk stays nearly full."""

    runtime: Runtime
    limits: Limits
    termini: Termini
    sessions: Sessions
    branches: Branches
    product_version: str
    name: str
    anonymous_login: tuple[str, str]
    """The user and password for anonymous peers (AMQP 1.0); an empty user if they are not allowed."""

    def __init__(self) -> None:
        self.dirty: list[ServerEngine] = []
        self.confirming: list[ServerEngine] = []

    def authenticate(self, user: str, password: str, peer_address: str) -> User | None:
        """Return the user if the password is right and logins from this address are allowed, else None."""
        raise NotImplementedError

    def user_proved(self, user: str, peer_address: str) -> User | None:
        """Return the user that a TLS certificate names, if logins from this address are allowed, else None."""
        raise NotImplementedError

    def authenticate_anonymous(self, peer_address: str) -> User | None:
        """Return the user of `anonymous_login`, if logins from this address are allowed, else None."""
        raise NotImplementedError

    def scram_finished(self, user: str, peer_address: str, *, is_proved: bool) -> User | None:
        """Return the user if SCRAM has proved the password and logins from this address are allowed, else None."""
        raise NotImplementedError

    def scram_keys(self, user: str) -> ScramKeys:
        """Return the keys of a user. Unknown users have keys, too, so that a peer cannot find out which users exist."""
        raise NotImplementedError

    def check_connection_limits(self, user: User, virtual_host: str) -> None:
        """Raises `NotAllowed` if `user` may not open one more connection to `virtual_host`."""
        raise NotImplementedError

    def virtual_host(self, name: str) -> VirtualHost | None:
        raise NotImplementedError

    def random_name(self, prefix: str) -> str:
        """A unique name that cannot be guessed."""
        raise NotImplementedError

    # --- work for the end of this batch of input; nothing is called immediately ---

    def mark_dirty(self, engine: ServerEngine) -> None:
        """`engine` has output for its transport: call its `end_batch`, then serve it."""
        if not engine.is_dirty:
            engine.is_dirty = True
            self.dirty.append(engine)

    def mark_confirming(self, engine: ServerEngine) -> None:
        """`engine` took publishes to be confirmed: call its `settle_confirms` before the commit of this batch."""
        self.confirming.append(engine)

    # --- connections ---

    def opened(self, engine: ServerEngine) -> None:
        """The connection is open."""
        raise NotImplementedError

    def lost(self, engine: ServerEngine) -> None:
        """The connection was lost or closed."""
        raise NotImplementedError
