"""Methods of class connection (0-9-1, 1.4): opening, tuning and closing a connection, always on channel 0."""

from dataclasses import field

from waybill.wire.amqp091.method import Method, method


@method(
    10,
    10,
    "connection.start",
    "version_major:octet version_minor:octet server_properties:table mechanisms:longstr locales:longstr",
)
class ConnectionStart(Method):
    """The server's version and properties, and its mechanisms and locales as lists separated by spaces."""

    version_major: int = 0
    version_minor: int = 9
    server_properties: dict[str, object] = field(default_factory=dict)
    mechanisms: str = ""
    locales: str = "en_US"


@method(10, 11, "connection.start-ok", "client_properties:table mechanism:shortstr response:octets locale:shortstr")
class ConnectionStartOk(Method):
    """The client chooses a SASL mechanism and gives its initial response."""

    client_properties: dict[str, object] = field(default_factory=dict)
    mechanism: str = "PLAIN"
    response: bytes = field(default=b"", repr=False)
    locale: str = "en_US"


@method(10, 20, "connection.secure", "challenge:octets")
class ConnectionSecure(Method):
    """A SASL challenge."""

    challenge: bytes = b""


@method(10, 21, "connection.secure-ok", "response:octets")
class ConnectionSecureOk(Method):
    """The response to a SASL challenge."""

    response: bytes = field(default=b"", repr=False)


@method(10, 30, "connection.tune", "channel_max:short frame_max:long heartbeat:short")
class ConnectionTune(Method):
    """The limits that the server proposes: 0 is no limit; `frame_max` in octets of a whole frame, `heartbeat` in s."""

    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0


@method(10, 31, "connection.tune-ok", "channel_max:short frame_max:long heartbeat:short")
class ConnectionTuneOk(Method):
    """The negotiated limits."""

    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0


@method(10, 40, "connection.open", "virtual_host:shortstr -:shortstr -:bit")
class ConnectionOpen(Method):
    """Open a virtual host."""

    virtual_host: str = "/"


@method(10, 41, "connection.open-ok", "-:shortstr")
class ConnectionOpenOk(Method):
    """The virtual host is open."""


@method(10, 50, "connection.close", "reply_code:short reply_text:shortstr class_id:short method_id:short")
class ConnectionClose(Method):
    """Close the connection, because of the method with these ids if not 0."""

    reply_code: int = 200
    reply_text: str = ""
    class_id: int = 0
    method_id: int = 0


@method(10, 51, "connection.close-ok")
class ConnectionCloseOk(Method):
    """The connection is closed."""


@method(10, 60, "connection.blocked", "reason:shortstr")
class ConnectionBlocked(Method):
    """RabbitMQ: the broker has stopped reading publishes."""

    reason: str = ""


@method(10, 61, "connection.unblocked")
class ConnectionUnblocked(Method):
    """RabbitMQ: the broker reads publishes again."""


@method(10, 70, "connection.update-secret", "new_secret:longstr reason:shortstr")
class ConnectionUpdateSecret(Method):
    """RabbitMQ: replace credentials that expire."""

    new_secret: str = field(default="", repr=False)
    reason: str = ""


@method(10, 71, "connection.update-secret-ok")
class ConnectionUpdateSecretOk(Method):
    """RabbitMQ: the new credentials are used."""
