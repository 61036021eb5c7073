"""`waybill coordinator`: cancel jobs and answer questions about them."""

import asyncio
import logging
import signal
from pathlib import Path

import click

from waybill.cli.address import uri_option
from waybill.client import ClientError
from waybill.ojs import Coordinator, InvalidJob, Jobs
from waybill.transport.loop import run


@click.command()
@click.argument("queues", nargs=-1, required=True)
@click.option(
    "--database",
    type=click.Path(dir_okay=False, path_type=Path),
    help="SQLite file with the state of all jobs.  [default: in memory, read from the events at each start]",
)
@uri_option
def command(queues: tuple[str, ...], database: Path | None, uri: str) -> None:
    """Coordinate QUEUES until SIGTERM or Ctrl-C. Prints `ready` when it does.

    Several may run: the broker lets one of them work, and the next one takes over when that ends.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    try:
        coordinator = Coordinator(Jobs(uri), queues=queues, database=str(database or ":memory:"))
        run(_coordinate(coordinator))
    except InvalidJob as error:
        raise click.UsageError(str(error)) from None
    except ClientError as error:
        raise click.ClickException(str(error)) from None


async def _coordinate(coordinator: Coordinator) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with coordinator:
        click.echo("ready")
        await stopped.wait()
