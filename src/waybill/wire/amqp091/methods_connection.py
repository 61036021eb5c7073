"""Methods of class connection (0-9-1, 1.4): opening, tuning and closing a connection, always on channel 0."""

from dataclasses import dataclass, field
from typing import ClassVar

from waybill.wire.amqp091.arguments import Arguments
from waybill.wire.amqp091.method import Method


@dataclass(frozen=True)
class ConnectionStart(Method):
    """The server begins: its version and properties, mechanisms and locales as lists with spaces between."""

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 10
    NAME: ClassVar[str] = "connection.start"
    ARGUMENTS: ClassVar[Arguments] = Arguments(
        "version_major:octet version_minor:octet server_properties:table mechanisms:longstr locales:longstr"
    )

    version_major: int = 0
    version_minor: int = 9
    server_properties: dict[str, object] = field(default_factory=dict)
    mechanisms: str = ""
    locales: str = "en_US"


@dataclass(frozen=True)
class ConnectionStartOk(Method):
    """The client chooses a SASL mechanism and gives its initial response."""

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 11
    NAME: ClassVar[str] = "connection.start-ok"
    ARGUMENTS: ClassVar[Arguments] = Arguments(
        "client_properties:table mechanism:shortstr response:octets locale:shortstr"
    )

    client_properties: dict[str, object] = field(default_factory=dict)
    mechanism: str = "PLAIN"
    response: bytes = field(default=b"", repr=False)
    locale: str = "en_US"


@dataclass(frozen=True)
class ConnectionSecure(Method):
    """A SASL challenge."""

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 20
    NAME: ClassVar[str] = "connection.secure"
    ARGUMENTS: ClassVar[Arguments] = Arguments("challenge:octets")

    challenge: bytes = b""


@dataclass(frozen=True)
class ConnectionSecureOk(Method):
    """The response to a SASL challenge."""

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 21
    NAME: ClassVar[str] = "connection.secure-ok"
    ARGUMENTS: ClassVar[Arguments] = Arguments("response:octets")

    response: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class ConnectionTune(Method):
    """The limits that the server proposes: 0 is no limit; `frame_max` in octets of a whole frame, `heartbeat` in s."""

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 30
    NAME: ClassVar[str] = "connection.tune"
    ARGUMENTS: ClassVar[Arguments] = Arguments("channel_max:short frame_max:long heartbeat:short")

    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0


@dataclass(frozen=True)
class ConnectionTuneOk(Method):
    """The limits that hold from now on."""

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 31
    NAME: ClassVar[str] = "connection.tune-ok"
    ARGUMENTS: ClassVar[Arguments] = Arguments("channel_max:short frame_max:long heartbeat:short")

    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0


@dataclass(frozen=True)
class ConnectionOpen(Method):
    """Open a virtual host."""

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 40
    NAME: ClassVar[str] = "connection.open"
    ARGUMENTS: ClassVar[Arguments] = Arguments("virtual_host:shortstr -:shortstr -:bit")

    virtual_host: str = "/"


@dataclass(frozen=True)
class ConnectionOpenOk(Method):
    """The virtual host is open."""

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 41
    NAME: ClassVar[str] = "connection.open-ok"
    ARGUMENTS: ClassVar[Arguments] = Arguments("-:shortstr")


@dataclass(frozen=True)
class ConnectionClose(Method):
    """Close the connection, because of the method with these ids if not 0."""

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 50
    NAME: ClassVar[str] = "connection.close"
    ARGUMENTS: ClassVar[Arguments] = Arguments("reply_code:short reply_text:shortstr class_id:short method_id:short")

    reply_code: int = 200
    reply_text: str = ""
    class_id: int = 0
    method_id: int = 0


@dataclass(frozen=True)
class ConnectionCloseOk(Method):
    """The connection is closed."""

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 51
    NAME: ClassVar[str] = "connection.close-ok"


@dataclass(frozen=True)
class ConnectionBlocked(Method):
    """RabbitMQ: the broker reads no more publishes for now."""

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 60
    NAME: ClassVar[str] = "connection.blocked"
    ARGUMENTS: ClassVar[Arguments] = Arguments("reason:shortstr")

    reason: str = ""


@dataclass(frozen=True)
class ConnectionUnblocked(Method):
    """RabbitMQ: the broker reads publishes again."""

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 61
    NAME: ClassVar[str] = "connection.unblocked"


@dataclass(frozen=True)
class ConnectionUpdateSecret(Method):
    """RabbitMQ: replace credentials that expire."""

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 70
    NAME: ClassVar[str] = "connection.update-secret"
    ARGUMENTS: ClassVar[Arguments] = Arguments("new_secret:longstr reason:shortstr")

    new_secret: str = field(default="", repr=False)
    reason: str = ""


@dataclass(frozen=True)
class ConnectionUpdateSecretOk(Method):
    """RabbitMQ: the new credentials are in force."""

    CLASS_ID: ClassVar[int] = 10
    METHOD_ID: ClassVar[int] = 71
    NAME: ClassVar[str] = "connection.update-secret-ok"
