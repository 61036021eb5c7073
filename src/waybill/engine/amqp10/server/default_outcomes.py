"""Applies the default outcome of a link to what its terminus held (1.0, 3.5.3)."""

from mypy_extensions import i64

from waybill.engine.amqp10.server.delivery_host import DeliveryHost
from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.task import OneByOne
from waybill.engine.amqp10.termini import Terminus
from waybill.model.entry import Entry


class DefaultOutcomes(OneByOne):
    """Settles the deliveries in order, and then releases the terminus."""

    def __init__(self, session: LinkHost, link: DeliveryHost, entries: list[Entry], terminus: Terminus) -> None:
        super().__init__(session, i64(len(entries)))
        self._link = link
        self._entries = entries
        self._terminus = terminus

    def take(self, index: i64) -> None:
        self._link.default_outcome.apply(self._link, self._entries[index])

    def work(self) -> bool:
        if not super().work():
            return False
        self._terminus.let_go()
        return True
