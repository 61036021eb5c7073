"""`waybill doctor`: find unsafe settings of a broker, with cause and remedy."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.text import Text

from waybill.cli.console import Console
from waybill.cli.echo import echo
from waybill.cli.failure import ask, explained
from waybill.cli.ranges import SECONDS
from waybill.cli.target import Target, broker_options, json_option
from waybill.client import AuthenticationFailed, ClientError, ConnectFailed, ConnectionLost, NotAllowed, connect
from waybill.ojs.spec.envelope import DEFAULT_TIMEOUT_SECONDS
from waybill.ojs.topology.doctor import Diagnosis, Examination, Severity
from waybill.ojs.topology.doctor.management import Management

STYLES = {Severity.PROBLEM: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


@click.command()
@click.argument("queues", nargs=-1)
@click.option("--app", metavar="MODULE:JOBS", help="Check the queues and time limits of a program's handlers.")
@click.option(
    "--consumer-timeout", type=SECONDS, help="The broker's consumer_timeout in seconds, which AMQP does not show."
)
@click.option(
    "--management", help="URL of RabbitMQ's management plugin, with login, for more checks.  [default: the context's]"
)
@broker_options
@json_option
def command(
    queues: tuple[str, ...],
    app: str | None,
    consumer_timeout: float | None,
    management: str | None,
    target: Target,
    *,
    as_json: bool,
) -> None:
    """Find unsafe settings of a broker and of the OJS QUEUES on it, with causes and remedies.

    Changes nothing, and needs only AMQP. With --management it also checks alarms, bindings and the channels of other
    programs.
    Exits with 1 if there is a problem.
    """
    longest = float(DEFAULT_TIMEOUT_SECONDS)
    if app is not None:
        from waybill.cli.jobs_object import load_jobs

        handlers = load_jobs(app).handlers.values()
        queues = tuple(dict.fromkeys([*queues, *(handler.queue for handler in handlers)]))
        longest = max((handler.defaults.get("timeout", longest) for handler in handlers), default=longest)
    found = ask(target, _examine(target, queues, longest, consumer_timeout))
    if management := management or target.management:
        found += ask(target, _manage(target, management, queues))
    if as_json:
        echo(json.dumps([{**asdict(one), "severity": one.severity.value} for one in found]))
    else:
        _show(found)
    if any(one.severity is Severity.PROBLEM for one in found):
        raise SystemExit(1)


async def _examine(
    target: Target, queues: tuple[str, ...], longest: float, consumer_timeout: float | None
) -> list[Diagnosis]:
    try:
        async with connect(target.uri, name="waybill doctor") as connection:
            return await Examination(
                connection, target.topology(), queues, longest_timeout=longest, consumer_timeout=consumer_timeout
            ).diagnoses()
    except ClientError as error:
        failed = explained(error, target)
        address = str(target.address)
        is_away = isinstance(error, AuthenticationFailed | ConnectFailed | ConnectionLost | NotAllowed)
        finding = "there is no connection" if is_away else "the examination ended early"
        return [Diagnosis("connection", Severity.PROBLEM, address, finding, failed.message, failed.hint)]


async def _manage(target: Target, url: str, queues: tuple[str, ...]) -> list[Diagnosis]:
    virtual_host = target.address.settings.virtual_host
    return Management(url, virtual_host).diagnoses(target.topology(), queues)


def _show(found: list[Diagnosis]) -> None:
    console = Console()
    for one in found:
        style = STYLES[one.severity]
        line = Text.assemble((one.severity.value, style), f" {one.subject}: {one.finding}")
        console.print(line, soft_wrap=True)
        console.print(f"    cause    {one.cause}", soft_wrap=True, highlight=False)
        console.print(f"    remedy   {one.remedy}", soft_wrap=True, highlight=False)
    worst = sum(one.severity is Severity.PROBLEM for one in found)
    console.print(f"{worst} problems, {len(found) - worst} other findings")
