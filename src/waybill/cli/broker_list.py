"""`waybill broker list`, `show` and `close`: the objects of a running broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from waybill.cli.echo import echo
from waybill.cli.management_client import ManagementClient, management_option, part
from waybill.cli.ranges import Number
from waybill.cli.target import json_option

Item = dict[str, Any]
Columns = tuple[tuple[str, str], ...]

KINDS: Final[Mapping[str, Columns]] = {
    "queues": (
        ("vhost", "vhost"),
        ("name", "name"),
        ("type", "type"),
        ("ready", "messages_ready"),
        ("unacked", "messages_unacknowledged"),
        ("consumers", "consumers"),
        ("in/s", "message_stats.publish_details.rate"),
        ("out/s", "message_stats.deliver_get_details.rate"),
        ("policy", "policy"),
    ),
    "exchanges": (
        ("vhost", "vhost"),
        ("name", "name"),
        ("type", "type"),
        ("durable", "durable"),
        ("in/s", "message_stats.publish_in_details.rate"),
        ("out/s", "message_stats.publish_out_details.rate"),
    ),
    "bindings": (
        ("vhost", "vhost"),
        ("source", "source"),
        ("destination", "destination"),
        ("kind", "destination_type"),
        ("routing key", "routing_key"),
        ("arguments", "arguments"),
    ),
    "connections": (
        ("name", "name"),
        ("user", "user"),
        ("vhost", "vhost"),
        ("protocol", "protocol"),
        ("state", "state"),
        ("channels", "channels"),
        ("in B/s", "recv_oct_details.rate"),
        ("out B/s", "send_oct_details.rate"),
        ("client", "user_provided_name"),
    ),
    "channels": (
        ("name", "name"),
        ("user", "user"),
        ("consumers", "consumer_count"),
        ("prefetch", "prefetch_count"),
        ("unacked", "messages_unacknowledged"),
        ("unconfirmed", "messages_unconfirmed"),
    ),
    "consumers": (
        ("queue", "queue.name"),
        ("tag", "consumer_tag"),
        ("channel", "channel_details.name"),
        ("prefetch", "prefetch_count"),
        ("acks", "ack_required"),
        ("active", "active"),
    ),
    "users": (("name", "name"), ("tags", "tags"), ("limits", "limits")),
    "permissions": (
        ("user", "user"),
        ("vhost", "vhost"),
        ("configure", "configure"),
        ("write", "write"),
        ("read", "read"),
    ),
    "policies": (
        ("vhost", "vhost"),
        ("name", "name"),
        ("pattern", "pattern"),
        ("applies to", "apply-to"),
        ("priority", "priority"),
        ("definition", "definition"),
    ),
    "operator-policies": (
        ("vhost", "vhost"),
        ("name", "name"),
        ("pattern", "pattern"),
        ("applies to", "apply-to"),
        ("priority", "priority"),
        ("definition", "definition"),
    ),
    "vhosts": (
        ("name", "name"),
        ("description", "description"),
        ("ready", "messages_ready"),
        ("unacked", "messages_unacknowledged"),
    ),
    "nodes": (
        ("name", "name"),
        ("memory", "mem_used"),
        ("disk free", "disk_free"),
        ("descriptors", "fd_used"),
        ("sockets", "sockets_used"),
        ("uptime ms", "uptime"),
    ),
}
"""The columns of each kind: title and field."""
VIRTUAL_HOST_KINDS: Final = frozenset({"queues", "exchanges", "bindings", "consumers", "policies", "operator-policies"})


@click.command("list")
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.option("--vhost", help="Only items in this virtual host.")
@click.option("--name", help="Only names that contain this text.")
@click.option("--sort", help="Field to sort by, named as in --json.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C. With --json, print one line per refresh.")
@click.option(
    "--interval",
    default=2.0,
    show_default=True,
    type=Number(min=0.1, max=3600),
    help="Seconds between refreshes, with --watch.",
)
@management_option
@json_option
def list_command(
    kind: str,
    vhost: str | None,
    name: str | None,
    sort: str | None,
    interval: float,
    client: ManagementClient,
    *,
    watch: bool,
    as_json: bool,
) -> None:
    """List queues, connections, users and more of a running broker. Needs its management API (`--management`)."""
    path = f"/{kind}"
    if vhost is not None:
        if kind not in VIRTUAL_HOST_KINDS:
            raise click.UsageError(f"{kind} do not belong to a virtual host.")
        path += f"/{part(vhost)}"
    if sort:
        path += f"?sort={part(sort)}"

    def fetch() -> list[Item]:
        items = client.all_of(path)
        return [one for one in items if name is None or name in str(one.get("name", one.get("destination", "")))]

    _show(fetch, KINDS[kind], interval, watch=watch, as_json=as_json)


def _show(fetch: Callable[[], list[Item]], columns: Columns, interval: float, *, watch: bool, as_json: bool) -> None:
    if as_json:
        echo(json.dumps(fetch()))
        while watch:
            time.sleep(interval)
            echo(json.dumps(fetch()))
        return
    from rich.live import Live

    from waybill.cli.console import Console

    console = Console()
    if not watch:
        console.print(_table(fetch(), columns))
        return
    with Live(_table(fetch(), columns), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(_table(fetch(), columns), refresh=True)


def _table(items: list[Item], columns: Columns) -> Any:  # noqa: ANN401 - rich is imported late
    from rich.table import Table

    table = Table(box=None)
    for head, _ in columns:
        table.add_column(head, overflow="fold")
    for item in items:
        table.add_row(*(_text(_field(item, path)) for _, path in columns))
    return table


def _field(item: object, path: str) -> object:
    for name in path.split("."):
        item = item.get(name) if isinstance(item, dict) else None
    return item


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


@click.command("show")
@management_option
@json_option
def show_command(client: ManagementClient, *, as_json: bool) -> None:
    """Show totals, rates, listeners and alarms of a running broker."""
    overview = client.ask("GET", "/overview")
    if as_json:
        echo(json.dumps(overview))
        return
    echo(f"{overview['product_name']} {overview['product_version']}, node {overview['node']}")
    for name, count in overview["object_totals"].items():
        echo(f"  {name:12} {count}")
    totals = overview["queue_totals"]
    echo(f"  {'ready':12} {totals['messages_ready']}")
    echo(f"  {'unacked':12} {totals['messages_unacknowledged']}")
    for name, details in sorted(overview["message_stats"].items()):
        if name.endswith("_details") and details["rate"]:
            echo(f"  {name.removesuffix('_details'):12} {details['rate']:.1f}/s")
    for one in overview.get("listeners", []):
        echo(f"  listens      {one['protocol']} {one['ip_address']}:{one['port']}")


@click.command("close")
@click.argument("connection")
@click.option("--reason", default="closed by an operator", show_default=True, help="Reason to send to the client.")
@management_option
@json_option
def close_command(connection: str, reason: str, client: ManagementClient, *, as_json: bool) -> None:
    """Close CONNECTION, or all of a user, as `user:NAME`.

    `waybill broker list connections` shows their names.
    """
    kind, _, name = connection.partition(":")
    path = f"/connections/username/{part(name)}" if kind == "user" else f"/connections/{part(connection)}"
    client.ask("DELETE", path, headers={"X-Reason": reason.encode("ascii", "replace").decode()})
    echo(json.dumps({"closed": connection}) if as_json else f"closed {connection}")
