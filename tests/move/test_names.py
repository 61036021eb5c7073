"""Names of a shovel's own queues: within the limit of AMQP, and none for two queues."""

from __future__ import annotations

from waybill.move.names import own_name


def test_a_short_name_is_kept() -> None:
    assert own_name("waybill.shovel.lock", "invoices") == "waybill.shovel.lock.invoices"
    assert own_name("p", "q" * 253) == "p." + "q" * 253


def test_long_names_stay_within_the_limit_and_differ() -> None:
    queues = ["q" * 254 + last for last in "ab"] + ["é" * 126 + last for last in "abc"] + ["q" * 255]
    names = {own_name("waybill.shovel.transit." + "0" * 32, queue) for queue in queues}
    assert len(names) == len(queues)
    assert max(len(name.encode()) for name in names) <= 255
