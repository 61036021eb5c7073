"""`waybill serve`: the Open Job Spec over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from waybill.broker import Broker, BrokerFailed
from waybill.cli.broker import default_data_dir
from waybill.cli.failure import explained
from waybill.cli.garbage import collect_rarely
from waybill.cli.http_options import HttpSettings, http_options
from waybill.cli.target import Target
from waybill.client import ClientError, ReconnectPolicy
from waybill.ojs import Jobs
from waybill.transport.descriptors import raise_descriptor_limit
from waybill.transport.loop import run

if TYPE_CHECKING:
    from waybill.backend.serving import Serving

RECONNECT = ReconnectPolicy(first_delay_s=0.1, max_delay_s=5.0)
"""Clients wait for a server whose broker is away, so it looks more often than the binding's default."""
PUSH_SECONDS = 20.0
"""How long a push waits for a broker that is away before its client is told."""


@click.command()
@click.option(
    "--uri",
    "--url",
    "uri",
    help="The broker: amqp://user:password@host/vhost.  [default: WAYBILL_URL, or one in this process]",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the broker in this process keeps messages.  [default: ~/.local/share/waybill]",
)
@click.option("--memory", is_flag=True, help="Keep everything in memory: nothing outlives the process.")
@click.option(
    "--database",
    default=":memory:",
    help="Where to keep the state of all jobs: a SQLite file, or a URL like postgresql://user@host/name.  [default: in"
    " memory, read from the events at each start]",
)
@click.option(
    "--test-mode",
    is_flag=True,
    help="For conformance tests: POST /ojs/v1/admin/reset empties the server. Needs --memory.",
)
@http_options
def command(
    uri: str | None,
    data_dir: Path | None,
    database: str,
    http: HttpSettings,
    *,
    memory: bool,
    test_mode: bool,
) -> None:
    """Serve jobs over HTTP until SIGTERM or Ctrl-C. Prints `ready http://...` when it accepts connections.

    Without --uri and WAYBILL_URL it runs a broker of its own. Only loopback can be served without --keys.
    """
    if test_mode and not memory:
        raise click.UsageError("--test-mode needs --memory: it empties the server.")
    has_own_broker = memory or data_dir is not None
    if uri is not None and has_own_broker:
        raise click.UsageError("--memory and --data-dir are for the broker in this process: leave out --uri.")
    if not has_own_broker:
        uri = uri or os.environ.get("WAYBILL_URL") or os.environ.get("WAYBILL_URI")
    raise_descriptor_limit()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    directory = None if memory else data_dir or default_data_dir()
    try:
        run(_serve(http, uri, directory, database, is_test=test_mode))
    except ClientError as error:
        raise explained(error, Target(uri or "")) from None
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot start on {http.host}:{http.port}: {error}") from None
    except BrokerFailed as error:
        raise click.ClickException(str(error)) from None


async def _serve(http: HttpSettings, uri: str | None, directory: Path | None, database: str, *, is_test: bool) -> None:
    from waybill.backend.serving import Serving

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)

    @contextlib.asynccontextmanager
    async def jobs() -> AsyncIterator[Jobs]:
        async with contextlib.AsyncExitStack() as stack:
            target = uri
            if target is None:
                broker = await stack.enter_async_context(Broker(port=0, data_dir=directory))
                target = broker.uri()
            yield Jobs(target, results=False, push_timeout=PUSH_SECONDS, reconnect=RECONNECT)

    serving = Serving(
        jobs,
        http.host,
        http.port,
        database=database,
        keys=http.keys,
        tls=http.tls,
        is_test=is_test,
        allows_private=http.allows_private,
        codec=http.codec,
        redacts=http.redacts,
    )
    async with serving:
        await _until_stopped(serving, stopping)


async def _until_stopped(serving: Serving, stopping: asyncio.Event) -> None:
    collect_rarely(young=50_000, whole_heap=1000)
    click.echo(f"ready {serving.url}")
    await stopping.wait()
