"""The opening of a connection, server side: start, authentication, tune, open (0-9-1, 2.2.4)."""

from typing import Final

from waybill.engine.amqp091.server.channel_host import FRAME_MIN, ChannelHost
from waybill.engine.amqp091.server.faults import connection_fault, reply_text
from waybill.engine.login import Login
from waybill.model.errors import NotAllowed
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_connection import (
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from waybill.wire.amqp091.reply_codes import ACCESS_REFUSED, COMMAND_INVALID, NOT_ALLOWED

CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
)


class Handshake:
    """The negotiation of a connection: `step` takes the peer's methods one by one."""

    def __init__(self, connection: ChannelHost) -> None:
        self._connection = connection
        self._expected: str = ConnectionStartOk.NAME
        self._login = Login(connection.host, "amqp091", connection.peer_address, connection.certificate_user)
        self._mechanism = ""
        self._tells_refusal = False

    def start(self) -> None:
        """Greet the peer."""
        host = self._connection.host
        self._connection.send_method(
            0,
            ConnectionStart(
                version_major=0,
                version_minor=9,
                server_properties={
                    "product": "Waybill",
                    "version": host.product_version,
                    "platform": "Python",
                    "cluster_name": host.name,
                    "copyright": "Copyright the Waybill contributors; Apache License 2.0",
                    "information": "AMQP 0-9-1, RabbitMQ dialect",
                    "capabilities": dict.fromkeys(CAPABILITIES, True),
                },
                mechanisms=" ".join(self._login.mechanisms),
                locales="en_US",
            ),
        )

    def step(self, method: Method) -> None:
        """Raises a connection fault if the handshake fails."""
        if self._expected != method.NAME:
            raise connection_fault(
                COMMAND_INVALID, f"expected {self._expected}, got {method.NAME}", method.CLASS_ID, method.METHOD_ID
            )
        if isinstance(method, ConnectionStartOk):
            self._authenticate(method)
        elif isinstance(method, ConnectionSecureOk):
            self._log_in(self._login.respond(method.response))
        elif isinstance(method, ConnectionTuneOk):
            self._tune(method)
        elif isinstance(method, ConnectionOpen):
            self._open(method)

    def _authenticate(self, method: ConnectionStartOk) -> None:
        connection = self._connection
        capabilities = method.client_properties.get("capabilities")
        known = capabilities if isinstance(capabilities, dict) else {}
        connection.client_properties = method.client_properties
        connection.knows_consumer_cancel = known.get("consumer_cancel_notify") is True
        connection.knows_blocked = known.get("connection.blocked") is True
        self._mechanism = connection.mechanism = method.mechanism
        self._tells_refusal = known.get("authentication_failure_close") is True
        self._log_in(self._login.begin(method.mechanism, method.response))

    def _log_in(self, challenge: bytes | None) -> None:
        """Continue the login, or go to the next step."""
        connection = self._connection
        if challenge is not None:
            self._expected = ConnectionSecureOk.NAME
            connection.send_method(0, ConnectionSecure(challenge))
            return
        user = self._login.user
        if user is None:
            connection.refuse_login(
                ConnectionClose(
                    reply_code=ACCESS_REFUSED,
                    reply_text=reply_text(
                        f"ACCESS_REFUSED - Login was refused using authentication mechanism {self._mechanism}. "
                        "For details see the broker logfile."
                    ),
                    class_id=0,
                    method_id=0,
                ),
                tells=self._tells_refusal,
            )
            return
        connection.user = user
        limits = connection.host.limits
        self._expected = ConnectionTuneOk.NAME
        connection.send_method(0, ConnectionTune(limits.channel_max, limits.frame_max, limits.heartbeat_s))

    def _tune(self, method: ConnectionTuneOk) -> None:
        connection = self._connection
        limits = connection.host.limits
        ids = (method.CLASS_ID, method.METHOD_ID)
        # A limit of 0 means none, which is more than was offered.
        if limits.channel_max and not 0 < method.channel_max <= limits.channel_max:
            raise connection_fault(
                NOT_ALLOWED, f"negotiated channel_max = {method.channel_max} (0: no limit) is higher than the maximum "
                f"allowed value ({limits.channel_max})", *ids
            )  # fmt: skip
        frame_max = method.frame_max or limits.frame_max
        if frame_max > limits.frame_max or frame_max < FRAME_MIN:
            raise connection_fault(
                NOT_ALLOWED,
                f"negotiated frame_max = {frame_max} is not between {FRAME_MIN} and {limits.frame_max}",
                *ids,
            )
        connection.channel_max = method.channel_max
        connection.frame_max = frame_max
        # 4.2.7: a heartbeat counts as sent after half of the interval, and as missing after two of them.
        connection.send_interval_s = method.heartbeat / 2
        connection.receive_timeout_s = 2.0 * method.heartbeat
        self._expected = ConnectionOpen.NAME

    def _open(self, method: ConnectionOpen) -> None:
        connection = self._connection
        ids = (method.CLASS_ID, method.METHOD_ID)
        virtual_host = connection.host.virtual_host(method.virtual_host)
        if virtual_host is None:
            raise connection_fault(NOT_ALLOWED, f"vhost {method.virtual_host} not found", *ids)
        if method.virtual_host not in connection.user.permissions:
            raise connection_fault(
                NOT_ALLOWED,
                f"access to vhost '{method.virtual_host}' refused for user '{connection.user.name}'",
                *ids,
            )
        try:
            connection.host.check_connection_limits(connection.user, method.virtual_host)
        except NotAllowed as error:
            raise connection_fault(NOT_ALLOWED, str(error), *ids) from None
        connection.opened(virtual_host)
        connection.send_method(0, ConnectionOpenOk())
