"""Our identity for the broker: the `user-id` of messages whose receivers need to know the sender.

Brokers refuse a message whose user-id differs from the connection's user, and so vouch for it. If a login gives a user
another name than the URI, as tokens and certificates do, messages have no user-id.
"""

from __future__ import annotations

import logging
from typing import Final

from waybill.client import PreconditionFailed
from waybill.client.uri import BrokerAddress

_EXTERNAL: Final = "external"

_log = logging.getLogger("waybill.ojs")


class Identity:
    """The name of a connection's user, None if unknown."""

    def __init__(self, address: BrokerAddress) -> None:
        settings = address.settings
        is_known = settings.mechanism.lower() != _EXTERNAL
        self.user: str | None = settings.user if is_known else None

    def is_refused(self, error: BaseException | None) -> bool:
        """Return whether a publish was refused for its user-id, which is omitted from then on."""
        if self.user is None or not isinstance(error, PreconditionFailed) or "user_id" not in str(error):
            return False
        _log.warning(
            "the broker knows this connection's user by another name than %s; messages are sent without user-id: %s",
            self.user,
            error,
        )
        self.user = None
        return True
