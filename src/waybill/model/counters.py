"""Totals of a node since its start, for monitoring: incremented where things happen, read periodically.

Queues and exchanges have their own counters (`Queue.counts`, `Exchange.routed`). When one is deleted, its counts are
added here.
"""

from mypy_extensions import i64


class Counters:
    """Totals of a node. Those of queues, exchanges and connections cover deleted and closed ones."""

    def __init__(self) -> None:
        self.connections_opened: i64 = 0
        self.channels_opened: i64 = 0
        self.queues_declared: i64 = 0
        self.queues_created: i64 = 0
        self.queues_deleted: i64 = 0
        self.confirmed: i64 = 0
        self.returned: i64 = 0
        self.unroutable: i64 = 0
        self.polled_empty: i64 = 0
        self.received_octets: i64 = 0
        self.sent_octets: i64 = 0
        self.published_in: i64 = 0
        self.published_out: i64 = 0
        self.retired: list[int] = []
        """The sum of `Queue.counts` of deleted queues."""
        self.logins: dict[str, tuple[int, int]] = {}
        """Successful and failed logins, by protocol."""

    def login_ended(self, protocol: str, is_in: bool) -> None:
        let_in, refused = self.logins.get(protocol, (0, 0))
        self.logins[protocol] = (let_in + 1, refused) if is_in else (let_in, refused + 1)

    def exchange_gone(self, published_in: i64, published_out: i64) -> None:
        self.published_in += published_in
        self.published_out += published_out

    def queue_gone(self, counts: tuple[int, ...]) -> None:
        self.queues_deleted += 1
        retired = self.retired or [0] * len(counts)
        self.retired = [one + other for one, other in zip(retired, counts, strict=True)]
