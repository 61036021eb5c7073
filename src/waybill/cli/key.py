"""`waybill key`: the API keys of `waybill serve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import click

from waybill.backend.keys import RANKS, InvalidKeyFile, Role, add_key
from waybill.cli.echo import echo
from waybill.cli.target import json_option


@click.group()
def command() -> None:
    """Create API keys for `waybill serve --keys FILE`."""


@command.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(list(RANKS)),
    default="operate",
    show_default=True,
    help="Role: read jobs; also push and work; or everything.",
)
@click.option("--tenant", default="", help="Tenant of the key, which only has access to the queues of this tenant.")
@click.option(
    "--request-limit",
    type=click.IntRange(1, 10_000_000),
    help="Maximum requests in a window, instead of `waybill serve --request-limit`.",
)
@json_option
def add(file: Path, name: str, role: str, tenant: str, request_limit: int | None, *, as_json: bool) -> None:
    """Create a key called NAME, print it, and store its hash in FILE. It replaces an older key of this name."""
    try:
        key = add_key(file, name, cast("Role", role), tenant, request_limit or 0)
        echo(json.dumps(_document(name, role, tenant, key)) if as_json else key)
    except InvalidKeyFile as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from None


def _document(name: str, role: str, tenant: str, key: str) -> dict[str, str]:
    return {"name": name, "role": role, **({"tenant": tenant} if tenant else {}), "key": key}
