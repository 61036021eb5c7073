"""Brokers that commands run: how they start, and what is said if they cannot."""

import asyncio
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from waybill.broker import Broker
from waybill.cli.main import main
from waybill.cli.own_broker import started
from waybill.client import connect


class Watched(Broker):
    """A broker that records which signals would end the process while it starts."""

    ending: frozenset[signal.Signals] = frozenset()

    async def start(self) -> None:
        self.ending = frozenset(
            one for one in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(one) is signal.SIG_DFL
        )
        await super().start()


async def test_a_start_can_be_ended_by_a_signal_and_what_follows_is_drained() -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    try:
        broker = Watched(port=0)
        async with started(broker):
            assert broker.ending == {signal.SIGTERM, signal.SIGINT}
            signal.raise_signal(signal.SIGTERM)
            await stopping.wait()
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


async def _fill(directory: Path) -> None:
    async with Broker(port=0, data_dir=directory) as broker, connect(broker.uri()) as connection:
        channel = await connection.channel()
        await channel.declare_queue("q", durable=True)
        await channel.publish(b"x", routing_key="q")


@pytest.mark.parametrize("verb", ["broker", "serve", "up"])
def test_lost_definitions_are_explained(tmp_path: Path, verb: str) -> None:
    asyncio.run(_fill(tmp_path))
    (tmp_path / "definitions.log").unlink()
    ports = ["--port", "0"] if verb == "broker" else ["--amqp-port", "0", "--port", "0"]
    result = CliRunner().invoke(main, [verb, "--data-dir", str(tmp_path), *ports])
    assert result.exit_code == 1
    assert "store rebuild" in result.output
    assert isinstance(result.exception, SystemExit)
