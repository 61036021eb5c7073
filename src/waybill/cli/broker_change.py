"""`waybill broker user|policy|vhost ...`: administration of a running broker."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from waybill.cli.echo import echo
from waybill.cli.managed import Managed, management_option, part
from waybill.cli.target import json_option

_VHOST = click.option("--vhost", default="/", show_default=True, help="The virtual host.")
_PASSWORD = click.option(
    "--password",
    help="The password; `-` reads standard input: other users can see arguments.  [default: asked for]",
)


def _say(what: dict[str, Any], text: str, *, as_json: bool) -> None:
    echo(json.dumps(what) if as_json else text)


def _read_password(given: str | None) -> str:
    if given is None:
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    return sys.stdin.readline().rstrip("\n") if given == "-" else given


@click.group("user")
def user_command() -> None:
    """Add, change and delete users of a running broker."""


@user_command.command("add")
@click.argument("name")
@_PASSWORD
@click.option("--tags", default="", help="Comma-separated tags: management, policymaker, monitoring, administrator.")
@click.option("--vhost", "vhosts", multiple=True, help="Grant all permissions in this virtual host.")
@management_option
@json_option
def add_user(
    name: str, password: str | None, tags: str, vhosts: tuple[str, ...], managed: Managed, *, as_json: bool
) -> None:
    """Add the user NAME. Without --vhost, the user has no access to any virtual host: see `permissions`."""
    managed.ask("PUT", f"/users/{part(name)}", {"password": _read_password(password), "tags": tags})
    for vhost in vhosts:
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        managed.ask("PUT", f"/permissions/{part(vhost)}/{part(name)}", everything)
    _say({"user": name, "tags": tags, "vhosts": list(vhosts)}, f"added user {name}", as_json=as_json)


@user_command.command("delete")
@click.argument("name")
@management_option
@json_option
def delete_user(name: str, managed: Managed, *, as_json: bool) -> None:
    """Delete the user NAME, and close their connections."""
    managed.ask("DELETE", f"/users/{part(name)}")
    _say({"deleted": name}, f"deleted user {name}", as_json=as_json)


@user_command.command("password")
@click.argument("name")
@_PASSWORD
@management_option
@json_option
def set_password(name: str, password: str | None, managed: Managed, *, as_json: bool) -> None:
    """Change the password of NAME. Open connections stay."""
    tags = managed.ask("GET", f"/users/{part(name)}")["tags"]
    managed.ask("PUT", f"/users/{part(name)}", {"password": _read_password(password), "tags": tags})
    _say({"user": name}, f"changed the password of user {name}", as_json=as_json)


@user_command.command("tags")
@click.argument("name")
@click.argument("tags", nargs=-1)
@management_option
@json_option
def set_tags(name: str, tags: tuple[str, ...], managed: Managed, *, as_json: bool) -> None:
    """Replace the tags of NAME by TAGS: management, policymaker, monitoring, administrator."""
    user = managed.ask("GET", f"/users/{part(name)}")
    body = {
        "password_hash": user["password_hash"],
        "hashing_algorithm": user["hashing_algorithm"],
        "tags": list(tags),
    }
    managed.ask("PUT", f"/users/{part(name)}", body)
    _say({"user": name, "tags": list(tags)}, f"user {name}: {', '.join(tags) or 'no tags'}", as_json=as_json)


@user_command.command("permissions")
@click.argument("name")
@_VHOST
@click.option("--configure", help="Pattern of names that may be declared and deleted.")
@click.option("--write", help="Pattern of names that may be published to.")
@click.option("--read", help="Pattern of names that may be consumed from.")
@click.option("--clear", is_flag=True, help="Revoke access to the virtual host.")
@management_option
@json_option
def set_permissions(
    name: str,
    vhost: str,
    configure: str | None,
    write: str | None,
    read: str | None,
    managed: Managed,
    *,
    clear: bool,
    as_json: bool,
) -> None:
    """Show, set or clear the permissions of NAME. A pattern that is not given allows nothing."""
    path = f"/permissions/{part(vhost)}/{part(name)}"
    patterns = {"configure": configure, "write": write, "read": read}
    if clear:
        managed.ask("DELETE", path)
        _say({"user": name, "vhost": vhost}, f"user {name} has no access to {vhost}", as_json=as_json)
        return
    if any(pattern is not None for pattern in patterns.values()):
        managed.ask("PUT", path, {action: pattern or "" for action, pattern in patterns.items()})
    found = managed.ask("GET", path)
    text = ", ".join(f"{action} {found[action] or '(nothing)'}" for action in patterns)
    _say(found, f"user {name} in {vhost}: {text}", as_json=as_json)


@click.group("policy")
def policy_command() -> None:
    """Set and clear policies of a running broker."""


@policy_command.command("set")
@click.argument("name")
@click.argument("pattern")
@click.argument("definition")
@_VHOST
@click.option(
    "--priority",
    type=click.IntRange(-0x80000000, 0x7FFFFFFF),
    default=0,
    help="The matching policy with the highest priority applies.  [default: 0]",
)
@click.option("--apply-to", default="all", show_default=True, help="all, queues, exchanges, classic_queues, streams...")
@click.option("--operator", is_flag=True, help="Set an operator policy, which owners of queues cannot override.")
@management_option
@json_option
def set_policy(
    name: str,
    pattern: str,
    definition: str,
    vhost: str,
    priority: int,
    apply_to: str,
    managed: Managed,
    *,
    operator: bool,
    as_json: bool,
) -> None:
    """Apply DEFINITION, a JSON object such as '{"max-length": 10}', to names that match PATTERN."""
    try:
        settings = json.loads(definition)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="DEFINITION") from None
    body = {"pattern": pattern, "definition": settings, "priority": priority, "apply-to": apply_to}
    managed.ask("PUT", f"{_root(is_operator=operator)}/{part(vhost)}/{part(name)}", body)
    _say({"name": name, "vhost": vhost, **body}, f"set policy {name} in {vhost}", as_json=as_json)


@policy_command.command("clear")
@click.argument("name")
@_VHOST
@click.option("--operator", is_flag=True, help="Clear an operator policy.")
@management_option
@json_option
def clear_policy(name: str, vhost: str, managed: Managed, *, operator: bool, as_json: bool) -> None:
    """Remove the policy NAME."""
    managed.ask("DELETE", f"{_root(is_operator=operator)}/{part(vhost)}/{part(name)}")
    _say({"cleared": name, "vhost": vhost}, f"cleared policy {name} in {vhost}", as_json=as_json)


def _root(*, is_operator: bool) -> str:
    return "/operator-policies" if is_operator else "/policies"


@click.group("vhost")
def vhost_command() -> None:
    """Add and delete virtual hosts of a running broker."""


@vhost_command.command("add")
@click.argument("name")
@click.option("--description", default="", help="Description of the virtual host.")
@management_option
@json_option
def add_vhost(name: str, description: str, managed: Managed, *, as_json: bool) -> None:
    """Add the virtual host NAME. The user who adds it gets all permissions in it."""
    managed.ask("PUT", f"/vhosts/{part(name)}", {"description": description} if description else {})
    _say({"vhost": name}, f"added virtual host {name}", as_json=as_json)


@vhost_command.command("delete")
@click.argument("name")
@click.confirmation_option(prompt="Delete the virtual host with all queues and messages in it?")
@management_option
@json_option
def delete_vhost(name: str, managed: Managed, *, as_json: bool) -> None:
    """Delete the virtual host NAME, with everything in it."""
    managed.ask("DELETE", f"/vhosts/{part(name)}")
    _say({"deleted": name}, f"deleted virtual host {name}", as_json=as_json)
