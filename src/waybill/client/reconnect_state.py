"""The states of a connection that reconnects, as a table.

NEW --dial--> OPENING --opened--> OPEN --lost--> AWAY --restored--> OPEN
|                  |              |
+--failed--> NEW   +-- close -----+-- close, given up --> CLOSED
"""

from enum import Enum
from typing import Final


class ReconnectState(Enum):
    """See the module's diagram."""

    NEW = "not open"
    OPENING = "being opened"
    OPEN = "open"
    AWAY = "away"
    CLOSED = "closed"


NEXT_STATES: Final[dict[ReconnectState, frozenset[ReconnectState]]] = {
    ReconnectState.NEW: frozenset({ReconnectState.OPENING, ReconnectState.CLOSED}),
    ReconnectState.OPENING: frozenset({ReconnectState.OPEN, ReconnectState.NEW, ReconnectState.CLOSED}),
    ReconnectState.OPEN: frozenset({ReconnectState.AWAY, ReconnectState.CLOSED}),
    ReconnectState.AWAY: frozenset({ReconnectState.OPEN, ReconnectState.CLOSED}),
    ReconnectState.CLOSED: frozenset(),
}
