"""`waybill serve`: the Open Job Spec over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import click

from waybill.broker import BrokerFailed
from waybill.cli.echo import echo
from waybill.cli.failure import explained, not_started
from waybill.cli.garbage_collection import collect_rarely
from waybill.cli.http_settings import HttpSettings, http_settings
from waybill.cli.own_broker import Reloader, make_broker, own_login, set_up_log, until_stopped, watched
from waybill.cli.settings_options import ALL_TABLES, HTTP_SHORT, Source, loaded, settings_options
from waybill.cli.stop_signals import started_unless_stopped, stop_event
from waybill.cli.target import Target, chosen
from waybill.client import ClientError, ReconnectPolicy
from waybill.model.errors import DefinitionsLost, UnsupportedStoreVersion
from waybill.ojs import Jobs, Topology
from waybill.settings import Configuration
from waybill.settings.sources import DEFAULT, ENVIRONMENT, OPTION
from waybill.transport.allocator import return_large_blocks
from waybill.transport.descriptors import descriptor_limit, raise_descriptor_limit
from waybill.transport.loop import run

RECONNECT = ReconnectPolicy(first_delay_s=0.1, max_delay_s=5.0)
"""HTTP clients wait while the broker is unreachable, so reconnect sooner than the default of `Jobs`."""
PUSH_SECONDS = 20.0
"""How long a push waits for an unreachable broker before it fails."""

MIN_DESCRIPTORS = 64
MIN_DESCRIPTORS_WITH_BROKER = 288
"""A broker keeps a file open for each stream, and allows streams only a share of the file descriptors."""


@click.command()
@click.option(
    "--uri",
    "--url",
    "uri",
    help="Broker URL: amqp://user:password@host/vhost.  [default: WAYBILL_URL, or a broker in this process]",
)
@click.option("--context", "context_name", help="Broker from `waybill context list`, with its names and queue types.")
@click.option(
    "--test-mode",
    is_flag=True,
    help="For conformance tests: let POST /ojs/v1/admin/reset empty the server. Needs --memory.",
)
@settings_options(ALL_TABLES, HTTP_SHORT, {"amqp.port": 0})
def command(uri: str | None, context_name: str | None, source: Source, *, test_mode: bool) -> None:
    """Serve jobs over HTTP until SIGTERM or Ctrl-C. Prints `ready http://...` when it accepts connections.

    Without --uri, --context and WAYBILL_URL it runs a broker of its own. Only loopback can be served without --keys.
    """
    configuration = loaded(source)
    http = http_settings(configuration)
    if test_mode and not configuration.is_on("memory"):
        raise click.UsageError("--test-mode needs --memory: it empties the server.")
    topology = None
    if context_name is not None:
        target = chosen(uri, context_name)
        uri, topology = target.uri, target.topology()
    if (uri := _broker_of(uri, configuration)) is not None:
        _ = Target(uri).address
    raise_descriptor_limit()
    return_large_blocks()
    _check_descriptors(MIN_DESCRIPTORS_WITH_BROKER if uri is None else MIN_DESCRIPTORS)
    set_up_log(configuration)
    try:
        run(_serve(http, uri, source, configuration, topology, is_test=test_mode))
    except ClientError as error:
        raise explained(error, Target(uri or "")) from None
    except OSError as error:
        raise not_started(error) from None
    except (BrokerFailed, DefinitionsLost, UnsupportedStoreVersion) as error:
        raise click.ClickException(str(error)) from None


def _check_descriptors(count: int) -> None:
    """Raises click.ClickException if this process may not open so many files and sockets."""
    limit = descriptor_limit()
    if limit < count:
        raise click.ClickException(
            f"this process may open {limit} files and sockets, and needs at least {count}: raise the limit with"
            f" `ulimit -n 4096`, or with LimitNOFILE= in a systemd unit."
        )


def _broker_of(uri: str | None, configuration: Configuration) -> str | None:
    """The URI of an external broker, None for one in this process. The source with higher precedence decides."""
    own = [configuration["data_dir"]] if configuration["data_dir"].value is not None else []
    own += [configuration["memory"]] if configuration.is_on("memory") else []
    rank = max((value.rank for value in own), default=DEFAULT)
    if uri is not None:
        if rank == OPTION:
            raise click.UsageError(
                "--memory and --data-dir are for a broker in this process: leave out --uri and --context."
            )
        return uri
    if rank >= ENVIRONMENT:
        return None
    return os.environ.get("WAYBILL_URL") or os.environ.get("WAYBILL_URI")


async def _serve(
    http: HttpSettings,
    uri: str | None,
    source: Source,
    configuration: Configuration,
    topology: Topology | None,
    *,
    is_test: bool,
) -> None:
    from waybill.backend.serving import Serving

    stopping = stop_event()
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @contextlib.asynccontextmanager
    async def jobs() -> AsyncIterator[Jobs]:
        async with contextlib.AsyncExitStack() as stack:
            target = uri
            if target is None:
                # A reset makes another one.
                broker = await stack.enter_async_context(watched(make_broker(configuration), failed))
                Reloader(broker, source, configuration).listen()
                target = broker.uri("/", *own_login(configuration, "/"))
            yield Jobs(target, topology=topology, results=False, push_timeout=PUSH_SECONDS, reconnect=RECONNECT)

    serving = Serving(
        jobs,
        http.host,
        http.port,
        database=configuration.text_or_none("database") or ":memory:",
        keep_days=configuration.integer_or_none("keep_days"),
        keys=http.keys,
        tls=http.tls,
        is_test=is_test,
        allows_private=http.allows_private,
        codec=http.codec,
        redacts=http.redacts,
        trace_url=http.trace_url,
        region=http.region,
        request_limit=http.request_limit,
        leased_memory=http.leased_memory,
    )
    async with started_unless_stopped(serving, stopping) as is_started:
        if is_started:
            collect_rarely(whole_heap=60_000)
            echo(f"ready {serving.url}")
            await until_stopped(failed, stopping)
