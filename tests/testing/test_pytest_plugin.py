import pytest

from waybill.client import blocking
from waybill.testing import TestBroker

pytest_plugins = ["waybill.testing.pytest_plugin"]


@pytest.mark.parametrize("number", range(2))
def test_the_fixture_gives_each_test_a_broker_of_its_own(waybill_broker: TestBroker, number: int) -> None:
    assert waybill_broker.queues() == []
    with blocking.connect(waybill_broker.uri()) as connection:
        connection.channel().declare_queue("ojs.queue.dlx.email", durable=True)
    assert waybill_broker.queues() == ["email"]
