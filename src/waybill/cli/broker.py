"""`waybill broker`: a stand-alone broker."""

import asyncio
import gc
import logging
import os
import signal
from pathlib import Path

import click

from waybill.broker import Broker, BrokerFailed
from waybill.transport.loop import run


def default_data_dir() -> Path:
    """Where a user's own data belongs (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "waybill"


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=5672, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where messages are kept.  [default: ~/.local/share/waybill]",
)
@click.option("--memory", is_flag=True, help="Keep everything in memory: nothing outlives the process.")
def command(host: str, port: int, data_dir: Path | None, *, memory: bool) -> None:
    """Run an AMQP 0-9-1 broker until SIGTERM or Ctrl-C, which drain it.

    Prints `ready amqp://...` when it accepts connections. guest/guest may log in from this machine.
    """
    if memory and data_dir is not None:
        raise click.UsageError("--memory and --data-dir exclude each other.")
    directory = None if memory else data_dir or default_data_dir()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    try:
        run(_serve(host, port, directory))
    except OSError as error:
        raise click.ClickException(f"cannot start on {host}:{port}: {error}") from None
    except BrokerFailed as error:
        raise click.ClickException(str(error)) from None


async def _serve(host: str, port: int, data_dir: Path | None) -> None:
    broker = Broker(host=host, port=port, data_dir=data_dir)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with broker:
        # What lives as long as the process needs no collecting, and messages are not cyclic: look rarely.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 50, 1000)
        click.echo(f"ready {broker.uri().replace('guest:guest@', '')}")
        failed = asyncio.ensure_future(broker.wait_stopped())
        stopped = asyncio.ensure_future(stopping.wait())
        await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if failed.done():
            await failed
        failed.cancel()
