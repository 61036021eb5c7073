"""`waybill up`: broker, coordinator, HTTP and dashboard in one process, on one data directory."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from waybill import __version__
from waybill.broker import Broker, BrokerFailed
from waybill.cli.definitions import show_report
from waybill.cli.echo import echo
from waybill.cli.failure import not_started
from waybill.cli.garbage_collection import collect_rarely
from waybill.cli.http_settings import HttpSettings, http_settings
from waybill.cli.own_broker import GUEST, Reloader, make_broker, own_login, set_up_log, until_stopped, watched
from waybill.cli.settings_options import HTTP_SHORT, UP_TABLES, Source, loaded, settings_options
from waybill.cli.stop_signals import started_unless_stopped, stop_event
from waybill.cli.worker_options import concurrency_option, grace_period_option
from waybill.cli.worker_process import WorkerProcess, can_reload
from waybill.client import ClientError
from waybill.model.errors import DefinitionsLost, UnsupportedStoreVersion
from waybill.ojs import Jobs
from waybill.transport.allocator import return_large_blocks
from waybill.transport.descriptors import raise_descriptor_limit
from waybill.transport.loop import run

if TYPE_CHECKING:
    from waybill.backend.serving import Serving

VIRTUAL_HOST: Final = "/ojs"
"""The default of `Jobs()`."""
STATE_FILE: Final = "jobs.db"
PUSH_SECONDS: Final = 20.0


@dataclass(frozen=True)
class UpSettings:
    """The settings of the process. `directory` None keeps everything in memory."""

    directory: Path | None
    database: str
    keep_days: int | None
    http: HttpSettings
    login: tuple[str, str]
    program: str | None
    concurrency: int
    grace_seconds: float
    reloads: bool


@click.command()
@click.argument("program", metavar="[MODULE:JOBS]", required=False)
@concurrency_option()
@grace_period_option
@click.option("--reload/--no-reload", default=True, help="Restart the worker when a Python file changes.")
@settings_options(UP_TABLES, HTTP_SHORT, {"log.level": "warning"})
def command(program: str | None, concurrency: int, grace_period: float, source: Source, *, reload: bool) -> None:
    """Run a broker, HTTP and the dashboard in one process, until Ctrl-C.

    With MODULE:JOBS, for example `shop.tasks:jobs`, it also runs the handlers of a program, in a separate process
    that restarts when a file changes. Only loopback can be served without --keys. SIGHUP reloads the configuration
    file. `waybill config show` lists all settings: each is an option here, including those of [limits].
    """
    configuration = loaded(source)
    http = http_settings(configuration)
    directory = configuration.data_dir
    raise_descriptor_limit()
    return_large_blocks()
    set_up_log(configuration)
    if program is not None and reload and not can_reload():
        echo("Without watchfiles, the worker does not restart when files change: pip install 'waybill-amqp[reload]'.")
        reload = False
    settings = UpSettings(
        directory,
        configuration.text_or_none("database") or _database(directory),
        configuration.integer_or_none("keep_days"),
        http,
        own_login(configuration, VIRTUAL_HOST),
        program,
        concurrency,
        grace_period,
        reload,
    )
    broker = make_broker(configuration)
    try:
        code = run(_up(settings, broker, Reloader(broker, source, configuration)))
    except OSError as error:
        raise not_started(error) from None
    except (BrokerFailed, ClientError, DefinitionsLost, UnsupportedStoreVersion) as error:
        raise click.ClickException(str(error)) from None
    sys.exit(code)


def _database(directory: Path | None) -> str:
    """Return the default database for the state of jobs: in the data directory, if the extra `state` is installed."""
    if directory is None:
        return ":memory:"
    try:
        import sqlalchemy  # noqa: F401 - only checks that it is installed
    except ImportError:
        return ":memory:"
    return str(directory / STATE_FILE)


async def _up(settings: UpSettings, broker: Broker, reloader: Reloader) -> int:
    """Run everything until a signal; returns the exit code."""
    from waybill.backend.serving import Serving
    from waybill.management.serving import LIMITS, CombinedApplication, Management

    stopping = stop_event()

    @contextlib.asynccontextmanager
    async def jobs() -> AsyncIterator[Jobs]:
        yield Jobs(broker.uri(VIRTUAL_HOST, *settings.login), results=False, push_timeout=PUSH_SECONDS)

    management = Management(broker)
    http = settings.http
    serving = Serving(
        jobs,
        http.host,
        http.port,
        database=settings.database,
        keep_days=settings.keep_days,
        keys=http.keys,
        tls=http.tls,
        allows_private=http.allows_private,
        codec=http.codec,
        redacts=http.redacts,
        trace_url=http.trace_url,
        region=http.region,
        request_limit=http.request_limit,
        leased_memory=http.leased_memory,
        limits=LIMITS,
        beside=partial(CombinedApplication, management),
    )
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with watched(broker, failed), management, started_unless_stopped(serving, stopping) as is_started:
        if not is_started:
            return 0
        reloader.listen()
        if broker.import_report is not None:
            show_report(broker.import_report)
        collect_rarely(whole_heap=60_000)
        echo("\n".join(_summary(settings, broker, serving)))
        if settings.program is not None:
            return await _work(settings, settings.program, broker, failed, stopping)
        await until_stopped(failed, stopping)
        return 0


async def _work(
    settings: UpSettings, program: str, broker: Broker, failed: asyncio.Future[None], stopping: asyncio.Event
) -> int:
    """Run the worker until a signal arrives or something fails; returns its exit code. Raises BrokerFailed."""
    arguments = [
        program,
        "--uri=-",
        "--create",
        f"--concurrency={settings.concurrency}",
        f"--grace-period={settings.grace_seconds}",
        "--log-jobs",
    ]
    # Other users can see the arguments of a process, but not its input.
    uri = f"{broker.uri(VIRTUAL_HOST, *settings.login)}\n"
    worker = WorkerProcess(arguments, uri, settings.grace_seconds, reloads=settings.reloads)
    working = asyncio.ensure_future(worker.run(stopping))
    working.add_done_callback(lambda _: stopping.set())
    try:
        await until_stopped(failed, stopping)
    finally:
        stopping.set()
        code = await working
    return code


def _summary(settings: UpSettings, broker: Broker, serving: Serving) -> Iterator[str]:
    """Yield the lines of the welcome text: the addresses, and the first steps."""
    uri = broker.uri(VIRTUAL_HOST)
    if settings.login != GUEST:
        uri = uri.replace("guest:guest", f"{settings.login[0]}:...")
    url = serving.url
    yield f"Waybill {__version__} is up. Ctrl-C stops it."
    yield ""
    yield f"  dashboard  {url}/"
    yield f"  HTTP       {url}/ojs/v1 (described at {url}/ojs/v1/docs)"
    yield f"  AMQP       {uri}"
    yield f"  data       {settings.directory or 'in memory: lost when this ends'}"
    if settings.program is not None:
        yield f"  worker     {settings.program}{', restarts when a file changes' if settings.reloads else ''}"
    yield ""
    yield "First steps, in another terminal:"
    yield ""
    key = "" if settings.http.keys is None else " -H 'Authorization: Bearer wb_...'"
    if settings.program is None:
        body = '{"type": "hello", "args": ["world"]}'
        yield f"  curl {url}/ojs/v1/jobs{key} --json '{body}'"
        yield "  waybill up app.jobs:jobs     # instead of this: runs the handlers of your program as well"
    else:
        # Only the process of the worker knows the handlers.
        body = '{"type": "TYPE", "args": []}'
        yield f"  curl {url}/ojs/v1/jobs{key} --json '{body}'     # TYPE: that of a handler in {settings.program}"
        yield f"  {url}/ui/#/enqueue     # the same as a form"
    yield ""
