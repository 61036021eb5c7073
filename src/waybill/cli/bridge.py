"""`waybill bridge`: run the messages of another job system as jobs."""

from __future__ import annotations

import contextlib
import json
from contextlib import AbstractAsyncContextManager

import click

from waybill.cli.echo import echo
from waybill.cli.garbage_collection import collect_rarely
from waybill.cli.jobs_object import load_jobs
from waybill.cli.stop_signals import started_unless_stopped, stop_event
from waybill.cli.target import json_option
from waybill.cli.text_log import log_format_option
from waybill.cli.worker import log_of_worker
from waybill.cli.worker_options import concurrency_option
from waybill.client import ClientError, InvalidURI
from waybill.client.service import Service
from waybill.ojs import InvalidJob, Jobs, Worker
from waybill.ojs.celery.bridge import CeleryBridge
from waybill.transport.loop import run


@click.group()
def command() -> None:
    """Run the messages of another job system as jobs."""


@command.command()
@click.argument("target", metavar="MODULE:JOBS")
@click.option("--queue", default="celery", show_default=True, help="Celery's queue.")
@click.option("--celery-uri", help="The broker of Celery.  [default: that of the jobs]")
@click.option("--dead-letters", default="celery", show_default=True, help="OJS queue for refused messages.")
@click.option("--map", "mappings", multiple=True, metavar="TASK=TYPE", help="Job type of a task.")
@concurrency_option()
@json_option
@log_format_option
@click.option("--no-worker", is_flag=True, help="Only push the jobs; other workers run them.")
def celery(
    target: str,
    queue: str,
    celery_uri: str | None,
    dead_letters: str,
    mappings: tuple[str, ...],
    concurrency: int,
    log_format: str,
    *,
    no_worker: bool,
    as_json: bool,
) -> None:
    """Run the messages of a Celery queue as jobs of MODULE:JOBS.

    It does so until SIGTERM or Ctrl-C. Reads protocol 2 with JSON. The type of a job is the name of its task in lower
    case. A message that cannot become a job, such as a chord, becomes a dead letter with a reason: `waybill dlq list
    --queue celery`.
    """
    names = {}
    for mapping in mappings:
        task, _, kind = mapping.partition("=")
        if not kind:
            raise click.BadParameter(f"{mapping!r} is not TASK=TYPE", param_hint="--map")
        names[task] = kind
    log_of_worker(log_format)
    jobs = load_jobs(target)
    try:
        bridge = CeleryBridge(jobs, queue, uri=celery_uri, names=names, dead_letters=dead_letters)
        run(_bridge(jobs, bridge, None if no_worker else Worker(jobs, concurrency=concurrency)))
        counts = {name: bridge.counts[name] for name in ("pushed", "refused")}
        echo(json.dumps(counts) if as_json else f"{counts['pushed']} pushed, {counts['refused']} refused")
    except InvalidJob as error:
        raise click.UsageError(str(error)) from None
    except (ClientError, InvalidURI) as error:
        raise click.ClickException(str(error)) from None


class _Working(Service):
    """The bridge, and the worker that runs its jobs."""

    def __init__(self, jobs: Jobs, bridge: CeleryBridge, worker: Worker | None) -> None:
        working = [] if worker is None else [worker]
        self._services: list[AbstractAsyncContextManager[object]] = [jobs, *working, bridge]
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for service in self._services:
                await stack.enter_async_context(service)
            self._stack = stack.pop_all()

    async def close(self) -> None:
        await self._stack.aclose()


async def _bridge(jobs: Jobs, bridge: CeleryBridge, worker: Worker | None) -> None:
    stopped = stop_event()
    async with started_unless_stopped(_Working(jobs, bridge, worker), stopped) as is_started:
        if is_started:
            collect_rarely()
            echo("ready")
            await stopped.wait()
