"""The states of a connection and of a channel, as tables: for each state, its events and the next state.

An event is a method of the server, or after "sent " one of the client. Other events are refused: from the
server they are protocol violations, from the user a ValueError. Only the `_move` of each sets its state, before
anything is written.

Known weak spots: connection.secure keeps the state and is checked by the login; requests and their answers on an open
channel have their own table, see `PendingRequests`.
"""

from enum import Enum
from typing import Final

SENT_CLOSE: Final = "sent close"
ENDED: Final = "ended"
"""A violation of the protocol, the transport's end, or for a channel the end of its connection."""


class ConnectionState(Enum):
    """HEADER_SENT: the protocol header is written. LOGIN: start-ok is. OPENING: tune-ok and open are."""

    HEADER_SENT = "header sent"
    LOGIN = "login"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class ChannelState(Enum):
    """OPENING: channel.open is written, and requests may follow. CLOSING: channel.close is written."""

    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


CONNECTION_STATES: Final[dict[ConnectionState, dict[str, ConnectionState]]] = {
    ConnectionState.HEADER_SENT: {
        "connection.start": ConnectionState.LOGIN,
        "connection.close": ConnectionState.CLOSED,
        ENDED: ConnectionState.CLOSED,
    },
    ConnectionState.LOGIN: {
        "connection.secure": ConnectionState.LOGIN,
        "connection.tune": ConnectionState.OPENING,
        "connection.close": ConnectionState.CLOSED,
        ENDED: ConnectionState.CLOSED,
    },
    ConnectionState.OPENING: {
        "connection.open-ok": ConnectionState.OPEN,
        "connection.close": ConnectionState.CLOSED,
        ENDED: ConnectionState.CLOSED,
    },
    ConnectionState.OPEN: {
        "connection.blocked": ConnectionState.OPEN,
        "connection.unblocked": ConnectionState.OPEN,
        SENT_CLOSE: ConnectionState.CLOSING,
        "connection.close": ConnectionState.CLOSED,
        ENDED: ConnectionState.CLOSED,
    },
    ConnectionState.CLOSING: {
        "connection.close-ok": ConnectionState.CLOSED,
        "connection.close": ConnectionState.CLOSED,
        ENDED: ConnectionState.CLOSED,
    },
    ConnectionState.CLOSED: {},
}

CHANNEL_STATES: Final[dict[ChannelState, dict[str, ChannelState]]] = {
    ChannelState.OPENING: {
        "channel.open-ok": ChannelState.OPEN,
        SENT_CLOSE: ChannelState.CLOSING,
        "channel.close": ChannelState.CLOSED,
        ENDED: ChannelState.CLOSED,
    },
    ChannelState.OPEN: {
        SENT_CLOSE: ChannelState.CLOSING,
        "channel.close": ChannelState.CLOSED,
        ENDED: ChannelState.CLOSED,
    },
    # When both sides close at once, the answer to our close is still to come.
    ChannelState.CLOSING: {
        "channel.close": ChannelState.CLOSING,
        "channel.close-ok": ChannelState.CLOSED,
        ENDED: ChannelState.CLOSED,
    },
    ChannelState.CLOSED: {},
}
