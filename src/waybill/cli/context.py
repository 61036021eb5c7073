"""`waybill context`: names for brokers."""

from __future__ import annotations

import json
import sys
from typing import Literal

import click
from rich.table import Table

from waybill.cli.console import Console
from waybill.cli.echo import echo, echo_result
from waybill.cli.partitions_option import event_partitions_option, partitions_option
from waybill.cli.target import json_option, target_of
from waybill.ojs.connection import contexts
from waybill.ojs.connection.contexts import Context, Contexts, NamesProfile
from waybill.ojs.errors import UnusableContexts


@click.group()
def command() -> None:
    """Remember brokers by name.

    Commands use the current one, or --context NAME.
    """


@command.command()
@click.argument("name")
@click.argument("uri")
@click.option("--management", help="URL of RabbitMQ's management plugin, with login: lets `doctor` check more.")
@click.option("--names", type=click.Choice(["spec", "web"]), default="spec", help="The naming profile.")
@click.option("--prefix", default="", help="Prefix of all names on the broker.")
@click.option("--queue-type", type=click.Choice(["classic", "quorum"]), default="classic", help="Type of job queues.")
@click.option(
    "--replicas", type=click.IntRange(1, 127), help="Number of cluster nodes with a replica of each queue and stream."
)
@click.option("--leader-locator", type=click.Choice(["client-local", "balanced"]), help="Placement of queue leaders.")
@partitions_option()
@event_partitions_option()
@click.option("--use", is_flag=True, help="Make it the current context. The first one always becomes current.")
@json_option
def add(
    name: str,
    uri: str,
    management: str | None,
    names: NamesProfile,
    prefix: str,
    queue_type: Literal["classic", "quorum"],
    replicas: int | None,
    leader_locator: Literal["client-local", "balanced"] | None,
    partitions: dict[str, int] | None,
    event_partitions: int | None,
    *,
    use: bool,
    as_json: bool,
) -> None:
    """Remember the broker at URI as NAME. URI `-` reads standard input: other users can see command arguments."""
    if uri == "-":
        uri = sys.stdin.readline().strip()
    divided = partitions or {}, event_partitions or 1
    context = Context(uri, management, names, prefix, queue_type, replicas, leader_locator, *divided)
    target = target_of(name, context)
    _ = target.address
    try:
        target.topology()
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    known = _load()
    known.contexts[name] = context
    if use or known.current not in known.contexts:
        known.current = name
    _save(known)
    echo_result({"added": name, "current": known.current}, f"added {name}", as_json=as_json)


@command.command()
@click.argument("name")
@json_option
def use(name: str, *, as_json: bool) -> None:
    """Use the broker NAME from now on."""
    known = _load()
    _require(known, name)
    known.current = name
    _save(known)
    echo_result({"current": name}, f"using {name}", as_json=as_json)


@command.command(name="list")
@json_option
def list_contexts(*, as_json: bool) -> None:
    """Show all contexts, with the current one marked. Passwords are not shown."""
    known = _load()
    rows = [
        {
            "name": name,
            "current": name == known.current,
            "broker": str(target_of(name, context).address),
            "user": target_of(name, context).address.settings.user,
            "names": context.names,
            "prefix": context.prefix,
            "queue_type": context.queue_type,
            "replicas": context.replicas,
            "leader_locator": context.leader_locator,
            "partitions": context.partitions,
            "event_partitions": context.event_partitions,
            "management": context.management is not None,
        }
        for name, context in sorted(known.contexts.items())
    ]
    if as_json:
        echo(json.dumps(rows))
        return
    table = Table("", "name", "broker", "user", "names", "prefix", box=None)
    for row in rows:
        marks = (
            "*" if row["current"] else "",
            *(str(row[key]) for key in ("name", "broker", "user", "names", "prefix")),
        )
        table.add_row(*marks)
    Console().print(table)


@command.command()
@click.argument("name")
@json_option
def remove(name: str, *, as_json: bool) -> None:
    """Forget the broker NAME."""
    known = _load()
    _require(known, name)
    del known.contexts[name]
    if known.current == name:
        known.current = None
    _save(known)
    echo_result({"removed": name, "current": known.current}, f"removed {name}", as_json=as_json)


def _load() -> Contexts:
    try:
        return contexts.load()
    except UnusableContexts as error:
        raise click.ClickException(str(error)) from None


def _save(known: Contexts) -> None:
    try:
        contexts.save(known)
    except OSError as error:
        raise click.ClickException(f"{contexts.contexts_file()}: {error.strerror}") from None


def _require(known: Contexts, name: str) -> None:
    if name not in known.contexts:
        raise click.UsageError(f"there is no context {name!r}; `waybill context list` shows all")
