"""The opening of a connection, server side: start, login, tune, open."""

from typing import Final

from waybill.engine.amqp010.server.faults import Fault, connection_fault
from waybill.engine.amqp010.server.session_host import SessionHost
from waybill.engine.login import Login
from waybill.model.errors import NotAllowed
from waybill.wire.amqp010.assembly import Assembler
from waybill.wire.amqp010.class_connection import (
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from waybill.wire.amqp010.constants import (
    CLOSE_CONNECTION_FORCED,
    CLOSE_FRAMING_ERROR,
    CLOSE_INVALID_PATH,
    MIN_MAX_FRAME_SIZE,
)
from waybill.wire.amqp010.frames import MAX_FRAME_SIZE
from waybill.wire.amqp010.struct import Control

DEFAULT_VIRTUAL_HOST: Final = "/"
HEARTBEAT_MAX_S: Final = 120


class Handshake:
    """The negotiation of a connection: `step` takes the peer's controls one by one."""

    def __init__(self, connection: SessionHost, assembler: Assembler) -> None:
        self._connection = connection
        self._assembler = assembler
        self._expected = ConnectionStartOk.CODE
        host, peer = connection.host, connection.peer_address
        self._login = Login(host, "amqp010", peer, connection.certificate_user, allows_anonymous=True)
        self._mechanism = ""

    def start(self) -> None:
        """Greet the peer."""
        host = self._connection.host
        self._connection.send_control(
            0,
            ConnectionStart(
                server_properties={
                    "product": "Waybill",
                    "version": host.product_version,
                    "platform": "Python",
                    "cluster_name": host.name,
                    "information": "AMQP 0-10",
                },
                mechanisms=self._login.mechanisms,
                locales=("en_US",),
            ),
        )

    def step(self, control: Control) -> None:
        """Raises a connection fault if the handshake fails."""
        if self._expected != control.CODE:
            raise connection_fault(CLOSE_FRAMING_ERROR, f"{control.NAME} is not expected in the opening")
        if isinstance(control, ConnectionStartOk):
            self._authenticate(control)
        elif isinstance(control, ConnectionSecureOk):
            self._log_in(self._login.respond(control.response))
        elif isinstance(control, ConnectionTuneOk):
            self._tune(control)
        elif isinstance(control, ConnectionOpen):
            self._open(control)

    def _authenticate(self, start_ok: ConnectionStartOk) -> None:
        connection = self._connection
        connection.client_properties = start_ok.client_properties or {}
        self._mechanism = start_ok.mechanism
        self._log_in(self._login.begin(start_ok.mechanism, start_ok.response))

    def _log_in(self, challenge: bytes | None) -> None:
        """Continue the login, or go to the next step."""
        connection = self._connection
        if challenge is not None:
            self._expected = ConnectionSecureOk.CODE
            connection.send_control(0, ConnectionSecure(challenge))
            return
        user = self._login.user
        if user is None:
            raise connection_fault(
                CLOSE_CONNECTION_FORCED, f"login was refused using authentication mechanism {self._mechanism}"
            )
        connection.user = user
        limits = connection.host.limits
        self._expected = ConnectionTuneOk.CODE
        connection.send_control(
            0, ConnectionTune(limits.channel_max or 0xFFFF, min(limits.frame_max, MAX_FRAME_SIZE), 0, HEARTBEAT_MAX_S)
        )

    def _tune(self, tune_ok: ConnectionTuneOk) -> None:
        connection = self._connection
        limits = connection.host.limits
        offered = limits.channel_max or 0xFFFF
        # Clients that leave it out accept the offered value.
        channel_max = tune_ok.channel_max or offered
        if channel_max > offered:
            raise connection_fault(CLOSE_FRAMING_ERROR, f"channel-max {channel_max} is more than {offered}")
        largest = min(limits.frame_max, MAX_FRAME_SIZE)
        size = tune_ok.max_frame_size or largest
        if not MIN_MAX_FRAME_SIZE <= size <= largest:
            raise connection_fault(
                CLOSE_FRAMING_ERROR, f"max-frame-size {size} is not between {MIN_MAX_FRAME_SIZE} and {largest}"
            )
        heartbeat = tune_ok.heartbeat or 0
        if heartbeat > HEARTBEAT_MAX_S:
            raise connection_fault(CLOSE_FRAMING_ERROR, f"heartbeat {heartbeat} is more than {HEARTBEAT_MAX_S}")
        connection.channel_max = channel_max
        connection.max_frame_size = size
        self._assembler.max_frame_size = size
        self._assembler.channel_max = channel_max
        connection.send_interval_s = heartbeat / 2
        connection.receive_timeout_s = 2.0 * heartbeat
        self._expected = ConnectionOpen.CODE

    def _open(self, control: ConnectionOpen) -> None:
        connection = self._connection
        name = control.virtual_host or DEFAULT_VIRTUAL_HOST
        virtual_host = connection.host.virtual_host(name)
        if virtual_host is None:
            raise connection_fault(CLOSE_INVALID_PATH, f"vhost {name} not found")
        if name not in connection.user.permissions:
            raise _refused(f"access to vhost '{name}' refused for user '{connection.user.name}'")
        try:
            connection.host.check_connection_limits(connection.user, name)
        except NotAllowed as error:
            raise _refused(str(error)) from None
        connection.opened(virtual_host)
        connection.send_control(0, ConnectionOpenOk(known_hosts=()))


def _refused(text: str) -> Fault:
    return connection_fault(CLOSE_CONNECTION_FORCED, text)
