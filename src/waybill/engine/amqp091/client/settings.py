"""The client's settings for the handshake."""

from dataclasses import dataclass, field
from typing import Final

DEFAULT_HEARTBEAT_S: Final = 60
DEFAULT_FRAME_MAX: Final = 131_072
DEFAULT_CHANNEL_MAX: Final = 2047
DEFAULT_MESSAGE_SIZE_MAX: Final = 128 * 1024 * 1024
"""Four times Waybill's own limit, and RabbitMQ's default before version 4."""

CAPABILITIES: Final[dict[str, object]] = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "exchange_exchange_bindings": True,
    "publisher_confirms": True,
}
"""Our capabilities. Without the first one, RabbitMQ drops a connection whose login fails, without a reason."""


@dataclass(frozen=True)
class ConnectionSettings:
    """Login, virtual host and the limits that we propose.

    `mechanism` is PLAIN, AMQPLAIN, SCRAM-SHA-256, which needs an unpredictable `nonce` for each connection, or EXTERNAL
    (login by TLS certificate). `heartbeat_s` 0 switches heartbeats off; otherwise the smaller of both sides' values
    applies. `frame_max` is in octets of a whole frame, `message_size_max` in those of a body. `name` shows in the
    broker's list of connections.
    """

    user: str = "guest"
    password: str = field(default="guest", repr=False)
    virtual_host: str = "/"
    mechanism: str = "PLAIN"
    heartbeat_s: int = DEFAULT_HEARTBEAT_S
    frame_max: int = DEFAULT_FRAME_MAX
    channel_max: int = DEFAULT_CHANNEL_MAX
    message_size_max: int = DEFAULT_MESSAGE_SIZE_MAX
    name: str = ""
    nonce: str = ""
    version: str = ""

    def client_properties(self) -> dict[str, object]:
        """The properties that we send to the server."""
        properties: dict[str, object] = {
            "product": "Waybill",
            "platform": "Python",
            "capabilities": dict(CAPABILITIES),
        }
        if self.version:
            properties["version"] = self.version
        if self.name:
            properties["connection_name"] = self.name
        return properties
