"""The life of a server connection as a table: which event leads from which state to which.

    SASL --LOGGED_IN--> HEADER --HEADER_TAKEN--> OPENING --OPENED--> OPEN --FAILED--> CLOSING --ENDED--> CLOSED
    OPENING, OPEN --PEER_CLOSED--> LEAVING --ENDED--> CLOSED

AMQP 0-9-1 begins in OPENING, AMQP 1.0 in SASL, or in OPENING without the SASL layer. An event that a state does not
list changes nothing: a connection that is closing does not fail again.
"""

from typing import Final

SASL: Final = "sasl"
HEADER: Final = "header"
"""After the SASL layer: the protocol header comes again (1.0, 5.3.2)."""
OPENING: Final = "opening"
OPEN: Final = "open"
CLOSING: Final = "closing"
"""An error was sent to the peer, which has time to answer."""
LEAVING: Final = "leaving"
"""The peer has closed, and was answered. It has time to disconnect: it would report our disconnect as an error."""
CLOSED: Final = "closed"

LOGGED_IN: Final = "logged in"
HEADER_TAKEN: Final = "header taken"
OPENED: Final = "opened"
FAILED: Final = "failed"
PEER_CLOSED: Final = "peer closed"
ENDED: Final = "ended"

TRANSITIONS: Final[dict[str, dict[str, str]]] = {
    SASL: {LOGGED_IN: HEADER, FAILED: CLOSED, ENDED: CLOSED},
    HEADER: {HEADER_TAKEN: OPENING, FAILED: CLOSED, ENDED: CLOSED},
    OPENING: {OPENED: OPEN, FAILED: CLOSING, PEER_CLOSED: CLOSED, ENDED: CLOSED},
    OPEN: {FAILED: CLOSING, PEER_CLOSED: LEAVING, ENDED: CLOSED},
    CLOSING: {PEER_CLOSED: CLOSED, ENDED: CLOSED},
    LEAVING: {ENDED: CLOSED},
    CLOSED: {},
}
