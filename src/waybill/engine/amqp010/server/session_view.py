"""The interface of a session for its parts: subscriptions, deliveries, transactions."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp010.server.command_session import CommandSession
from waybill.engine.amqp010.server.credited_consumer import CreditedConsumer
from waybill.engine.amqp010.server.session_host import SessionHost
from waybill.engine.amqp010.server.window_transfers import WindowTransfers
from waybill.engine.amqp010.sessions import SessionKey
from waybill.model.branch import Branch
from waybill.model.entry import Entry
from waybill.model.transaction import Transaction

WINDOW_LEAST: Final = 16
"""The deliveries that a session may always have in flight."""


class SessionView(CommandSession):
    """Deliveries by the count of their transfer.

    `unsettled` are acquired, and not accepted yet. `browsed` are copies, which the peer may acquire. `windowed`: the
    transfers that are not completed, of subscriptions in window mode.
    """

    def __init__(self, key: SessionKey, connection: SessionHost) -> None:
        super().__init__(key, connection.host.runtime)
        host = connection.host
        self.host = host
        self.virtual_host = connection.virtual_host
        self.user = connection.user
        self.unsettled: dict[i64, Entry] = {}
        self.browsed: dict[i64, Entry] = {}
        self.windowed = WindowTransfers()
        # The limit of `browsed`, and of runs in `windowed`.
        self.window_room: i64 = WINDOW_LEAST
        self.unsettled_max: i64 = host.limits.unsettled_per_channel_max
        # There were outcomes after the peer's last request for a completion.
        self.has_settled = False
        self.transaction: Transaction | None = None
        self.is_dtx = False
        self.branch: Branch | None = None
        self.suspended: dict[bytes, Branch] = {}
        self.flushing: list[tuple[CreditedConsumer, i64]] = []

    @property
    def attached(self) -> SessionHost:
        """The connection, while a command of it is executed."""
        connection = self.connection
        assert connection is not None  # noqa: S101 - commands come by a connection
        return connection

    def grow_window(self) -> bool:
        """More room for `windowed` and `browsed`, if there is any."""
        raise NotImplementedError

    def shrink_window(self) -> None:
        """There are fewer of them."""
        raise NotImplementedError

    def give_back_memory(self, size: i64) -> None:
        """A transaction holds less memory."""
        raise NotImplementedError

    def consumer_cancelled(self, consumer: CreditedConsumer, number: i64) -> None:
        """The queue of a subscription was deleted."""
        raise NotImplementedError
