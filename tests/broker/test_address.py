"""Where a broker listens: a free port is known once it has started."""

import pytest

from waybill.broker import Broker


async def test_a_port_that_is_not_chosen_yet_is_in_no_uri() -> None:
    broker = Broker(port=0)
    with pytest.raises(RuntimeError, match="start it first"):
        broker.uri()
    async with broker:
        assert broker.uri() == f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F"
    assert Broker(port=5672).uri() == "amqp://guest:guest@127.0.0.1:5672/%2F"
