"""`waybill worker`: run the handlers of a program."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING

import click

from waybill.cli.echo import echo
from waybill.cli.end_with_parent import end_with_parent
from waybill.cli.garbage_collection import collect_rarely
from waybill.cli.jobs_object import load_jobs
from waybill.cli.metrics_server import serve
from waybill.cli.ranges import PORT
from waybill.cli.text_log import log_format_option, log_in
from waybill.cli.worker_options import (
    concurrency_option,
    grace_period_option,
    health_host_option,
    health_port_option,
)
from waybill.client import ClientError, InvalidURI
from waybill.ojs import InvalidJob, Jobs, Worker
from waybill.ojs.connection.bindings import is_remote
from waybill.ojs.coordinator.policy import ControlPolicy
from waybill.ojs.errors import ControlFailed
from waybill.ojs.middleware import JobLogFilter, log_context
from waybill.ojs.worker.prefetch import MAX_WEIGHT
from waybill.transport.loop import run

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(job_id)s: %(message)s"


def serve_metrics(worker: Worker, port: int) -> contextlib.AbstractContextManager[int]:
    """Serve a worker's metrics on loopback, in a thread; yields the port. Raises click.ClickException."""

    def collector() -> Collector:
        from waybill.ojs.observe.metrics import WorkerMetrics

        return WorkerMetrics(worker)

    return serve(collector, port)


def read_queues(text: str | None) -> dict[str, int] | None:
    """Parse `critical=6,default`: queues with their weights, 1 by default. Raises click.BadParameter."""
    if not text:
        return None
    weights = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition("=")
        if weight and not (weight.isdecimal() and len(weight) <= 7 and 1 <= int(weight) <= MAX_WEIGHT):
            raise click.BadParameter(
                f"the weight of {name} is not in the range 1<=x<={MAX_WEIGHT}: {weight!r}", param_hint="--queues"
            )
        weights[name] = int(weight or 1)
    return weights


async def work(worker: Worker, health_host: str, health_port: int | None, *, as_json: bool) -> None:
    """Run a worker until it ends, with health probes if a port is given, and print its counts."""
    collect_rarely()
    if health_port is None:
        await worker.run()
    else:
        from waybill.cli.health import look_at_worker, serve_health

        with serve_health(partial(look_at_worker, worker), health_host, health_port):
            await worker.run()
    echo(json.dumps(worker.counts) if as_json else ", ".join(f"{n} {name}" for name, n in worker.counts.items()))
    if worker.has_stuck_handlers:
        # A normal exit would wait for coroutines that ignore cancellation, and for threads.
        sys.stdout.flush()
        os._exit(0)


def log_of_worker(log_format: str) -> None:
    """Log with the jobs that the records are about."""
    log_in(log_format, "worker", LOG_FORMAT, JobLogFilter())


def run_worker(jobs: Jobs, main: Coroutine[object, object, None]) -> None:
    """Run a coroutine. Errors of the connection become errors of click, with a hint."""
    try:
        run(main)
    except InvalidURI as error:
        raise click.UsageError(str(error)) from None
    except ControlFailed as error:
        raise click.ClickException(str(error)) from None
    except ClientError as error:
        from waybill.cli.failure import explained
        from waybill.cli.target import Target

        raise explained(error, Target(jobs.uri)) from None


def override_broker(jobs: Jobs, uri: str | None, context_name: str | None, *, create: bool) -> None:
    """Use the broker of --uri or --context, and the names of the context unless the program sets its own."""
    if uri == "-":
        uri = sys.stdin.readline().strip()
    if create:
        jobs.create_queues = jobs.guard.creates = True
    if uri is not None or context_name is not None:
        from waybill.cli.target import chosen

        meant = chosen(uri, context_name)
        if not is_remote(meant.uri):
            _ = meant.address
        keeps_names = meant.context is None or jobs.has_own_topology
        jobs.connect_to(meant.uri, None if keeps_names else meant.topology())


def stop_with_parent(grace_seconds: float | None) -> None:
    """End with the parent process, if a grace period is given."""
    if grace_seconds is not None:
        # Nothing else reads standard input from here on; the parent keeps it open as long as it runs.
        end_with_parent(grace_seconds)


def run_with_reload(grace_seconds: float) -> None:
    """Run this command without --reload, and restart it after each change."""
    from waybill.cli.reload import run_again_on_changes

    run_again_on_changes([one for one in sys.argv[1:] if one != "--reload"], grace_seconds)


@click.command()
@click.argument("target", metavar="MODULE:JOBS")
@click.option(
    "--uri",
    "--url",
    "uri",
    help="Broker URL, instead of the program's; - reads it from standard input.  [WAYBILL_URL]",
)
@click.option("--context", "context_name", help="Broker from `waybill context list`.  [WAYBILL_CONTEXT]")
@click.option(
    "--queues",
    callback=lambda _context, _option, text: read_queues(text),
    help="Comma-separated queues, with weights: critical=6,low.  [default: the handlers']",
)
@click.option("--create", is_flag=True, help="Declare missing queues.")
@concurrency_option()
@click.option(
    "--processes",
    type=click.IntRange(1, 1024),
    help="Number of processes for CPU-bound handlers.  [default: 1 per CPU]",
)
@click.option(
    "--prefetch", type=click.IntRange(1, 65_535), help="Number of jobs to prefetch.  [default: the concurrency]"
)
@grace_period_option
@click.option("--coordinator", is_flag=True, help="Also run a coordinator in this process.")
@click.option("--trust", multiple=True, metavar="USER", help="A user who may cancel all jobs, with --coordinator.")
@click.option("--metrics-port", type=PORT, help="Serve metrics for Prometheus on this port.")
@health_port_option
@health_host_option
@click.option("--reload", is_flag=True, help="Restart when a Python file below this directory changes.")
@log_format_option
@click.option("--log-jobs", is_flag=True, help="Log the start and the end of every job.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts of jobs as JSON at the end.")
@click.option("--with-parent", is_flag=True, hidden=True, help="Stop when standard input ends.")
def command(
    target: str,
    uri: str | None,
    context_name: str | None,
    queues: dict[str, int] | None,
    concurrency: int,
    processes: int | None,
    prefetch: int | None,
    grace_period: float,
    metrics_port: int | None,
    health_port: int | None,
    health_host: str,
    log_format: str,
    *,
    create: bool,
    trust: tuple[str, ...],
    coordinator: bool,
    reload: bool,
    log_jobs: bool,
    as_json: bool,
    with_parent: bool,
) -> None:
    """Run a program's handlers until SIGTERM or Ctrl-C, which drain them.

    MODULE:JOBS names the waybill.Jobs object, for example `shop.tasks:jobs`. A package alone, `shop`, means the
    object that its modules called `jobs` or `tasks` share. --uri and --context override the broker of the program.
    """
    if reload:
        run_with_reload(grace_period)
        return
    log_of_worker(log_format)
    jobs = load_jobs(target)
    override_broker(jobs, uri, context_name, create=create)
    stop_with_parent(grace_period if with_parent else None)
    try:
        worker = Worker(
            jobs,
            queues=queues,
            concurrency=concurrency,
            processes=processes,
            prefetch=prefetch,
            grace_period=grace_period,
            middleware=[log_context] if log_jobs else [],
            coordinator=coordinator,
            policy=ControlPolicy(trusted=trust),
        )
    except InvalidJob as error:
        raise click.UsageError(str(error)) from None
    with serve_metrics(worker, metrics_port) if metrics_port is not None else contextlib.nullcontext():
        run_worker(jobs, work(worker, health_host, health_port, as_json=as_json))
