"""`waybill coordinator`: cancel and look up jobs, fire cron jobs, move workflows on."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import click

from waybill.cli.echo import echo
from waybill.cli.failure import explained
from waybill.cli.garbage_collection import collect_rarely
from waybill.cli.metrics_server import serve
from waybill.cli.ranges import DAYS, PORT
from waybill.cli.stop_signals import started_unless_stopped, stop_event
from waybill.cli.target import Target, broker_options
from waybill.cli.text_log import log_format_option, log_in
from waybill.cli.worker_options import health_host_option, health_port_option
from waybill.client import ClientError
from waybill.ojs import Coordinator, InvalidJob
from waybill.ojs.coordinator.policy import ControlPolicy
from waybill.transport.allocator import return_large_blocks
from waybill.transport.loop import run

if TYPE_CHECKING:
    from prometheus_client.registry import Collector


@click.command()
@click.argument("queues", nargs=-1, required=True)
@click.option(
    "--database",
    default=":memory:",
    help="Database for the state of all jobs: a SQLite file, or a URL like postgresql://user@host/name.  [default: in"
    " memory, read from the events at each start]",
)
@click.option("--keep-days", type=DAYS, help="Delete jobs from the database this many days after their end.")
@click.option("--rebuild", is_flag=True, help="Rebuild the state from the first event.")
@click.option("--trust", multiple=True, metavar="USER", help="User who may cancel and list all jobs.")
@click.option("--metrics-port", type=PORT, help="Serve metrics for Prometheus on this port of localhost.")
@health_port_option
@health_host_option
@log_format_option
@broker_options
def command(
    queues: tuple[str, ...],
    database: str,
    keep_days: int | None,
    metrics_port: int | None,
    health_port: int | None,
    health_host: str,
    log_format: str,
    target: Target,
    *,
    rebuild: bool,
    trust: tuple[str, ...],
) -> None:
    """Answer requests about the jobs of QUEUES, fire cron jobs and advance workflows, until SIGTERM or Ctrl-C.

    Prints `ready` once it is running. Several may run: one is the leader, and another takes over when it stops.
    """
    log_in(log_format, "server")
    return_large_blocks()
    try:
        policy = ControlPolicy(trusted=trust)
        coordinator = Coordinator(
            target.jobs(), queues=queues, database=database, rebuild=rebuild, policy=policy, keep_days=keep_days
        )
        with contextlib.ExitStack() as stack:
            if metrics_port is not None:
                stack.enter_context(_metrics(coordinator, metrics_port))
            run(_coordinate(coordinator, health_host, health_port))
    except InvalidJob as error:
        raise click.UsageError(str(error)) from None
    except ClientError as error:
        raise explained(error, target) from None


def _metrics(coordinator: Coordinator, port: int) -> contextlib.AbstractContextManager[int]:
    def collector() -> Collector:
        from waybill.ojs.observe.metrics import CoordinatorMetrics

        return CoordinatorMetrics(coordinator)

    return serve(collector, port)


async def _coordinate(coordinator: Coordinator, health_host: str, health_port: int | None) -> None:
    stopped = stop_event()
    async with contextlib.AsyncExitStack() as stack:
        if health_port is not None:
            # Also while it starts, which may take long.
            from waybill.cli.health import look_at_coordinator, serve_health

            stack.enter_context(serve_health(partial(look_at_coordinator, coordinator), health_host, health_port))
        if await stack.enter_async_context(started_unless_stopped(coordinator, stopped)):
            collect_rarely()
            echo("ready")
            await stopped.wait()
