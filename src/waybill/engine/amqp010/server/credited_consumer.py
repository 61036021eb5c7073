"""A subscription, as its session sees it."""

from mypy_extensions import i64

from waybill.model.consumer import Consumer
from waybill.model.queue import Queue


class CreditedConsumer(Consumer):
    """A consumer with credit in messages and in octets."""

    queue: Queue

    def completed(self, count: i64, size: i64) -> None:
        """The peer has completed transfers with this total size: in window mode, their credit returns."""
        raise NotImplementedError

    def stop(self) -> None:
        """Revoke all credit."""
        raise NotImplementedError
