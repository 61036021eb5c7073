"""`waybill broker user|policy|vhost ...`: administration of a running broker."""

from __future__ import annotations

import json
import sys

import click

from waybill.cli.echo import echo_result
from waybill.cli.management_client import ManagementClient, management_option, part
from waybill.cli.target import json_option

_VHOST = click.option("--vhost", default="/", show_default=True, help="The virtual host.")
_PASSWORD = click.option(
    "--password",
    help="The password; `-` reads standard input: other users can see arguments.  [default: asked for]",
)


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
    name: str, password: str | None, tags: str, vhosts: tuple[str, ...], client: ManagementClient, *, as_json: bool
) -> None:
    """Add the user NAME. Without --vhost, the user has no access to any virtual host: see `permissions`."""
    client.ask("PUT", f"/users/{part(name)}", {"password": _read_password(password), "tags": tags})
    for vhost in vhosts:
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        client.ask("PUT", f"/permissions/{part(vhost)}/{part(name)}", everything)
    echo_result({"user": name, "tags": tags, "vhosts": list(vhosts)}, f"added user {name}", as_json=as_json)


@user_command.command("delete")
@click.argument("name")
@management_option
@json_option
def delete_user(name: str, client: ManagementClient, *, as_json: bool) -> None:
    """Delete the user NAME, and close their connections."""
    client.ask("DELETE", f"/users/{part(name)}")
    echo_result({"deleted": name}, f"deleted user {name}", as_json=as_json)


@user_command.command("password")
@click.argument("name")
@_PASSWORD
@management_option
@json_option
def set_password(name: str, password: str | None, client: ManagementClient, *, as_json: bool) -> None:
    """Change the password of NAME. Open connections stay."""
    tags = client.ask("GET", f"/users/{part(name)}")["tags"]
    client.ask("PUT", f"/users/{part(name)}", {"password": _read_password(password), "tags": tags})
    echo_result({"user": name}, f"changed the password of user {name}", as_json=as_json)


@user_command.command("tags")
@click.argument("name")
@click.argument("tags", nargs=-1)
@management_option
@json_option
def set_tags(name: str, tags: tuple[str, ...], client: ManagementClient, *, as_json: bool) -> None:
    """Replace the tags of NAME with TAGS.

    They are management, policymaker, monitoring and administrator.
    """
    user = client.ask("GET", f"/users/{part(name)}")
    body = {
        "password_hash": user["password_hash"],
        "hashing_algorithm": user["hashing_algorithm"],
        "tags": list(tags),
    }
    client.ask("PUT", f"/users/{part(name)}", body)
    echo_result({"user": name, "tags": list(tags)}, f"user {name}: {', '.join(tags) or 'no tags'}", as_json=as_json)


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
    client: ManagementClient,
    *,
    clear: bool,
    as_json: bool,
) -> None:
    """Show, set or clear the permissions of NAME. A pattern that is left out allows nothing."""
    path = f"/permissions/{part(vhost)}/{part(name)}"
    patterns = {"configure": configure, "write": write, "read": read}
    if clear:
        client.ask("DELETE", path)
        echo_result({"user": name, "vhost": vhost}, f"user {name} has no access to {vhost}", as_json=as_json)
        return
    if any(pattern is not None for pattern in patterns.values()):
        client.ask("PUT", path, {action: pattern or "" for action, pattern in patterns.items()})
    found = client.ask("GET", path)
    text = ", ".join(f"{action} {found[action] or '(nothing)'}" for action in patterns)
    echo_result(found, f"user {name} in {vhost}: {text}", as_json=as_json)


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
    client: ManagementClient,
    *,
    operator: bool,
    as_json: bool,
) -> None:
    """Apply DEFINITION to names that match PATTERN.

    DEFINITION is a JSON object such as '{"max-length": 10}'.
    """
    try:
        settings = json.loads(definition)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="DEFINITION") from None
    body = {"pattern": pattern, "definition": settings, "priority": priority, "apply-to": apply_to}
    client.ask("PUT", f"{_root(is_operator=operator)}/{part(vhost)}/{part(name)}", body)
    echo_result({"name": name, "vhost": vhost, **body}, f"set policy {name} in {vhost}", as_json=as_json)


@policy_command.command("clear")
@click.argument("name")
@_VHOST
@click.option("--operator", is_flag=True, help="Clear an operator policy.")
@management_option
@json_option
def clear_policy(name: str, vhost: str, client: ManagementClient, *, operator: bool, as_json: bool) -> None:
    """Remove the policy NAME."""
    client.ask("DELETE", f"{_root(is_operator=operator)}/{part(vhost)}/{part(name)}")
    echo_result({"cleared": name, "vhost": vhost}, f"cleared policy {name} in {vhost}", as_json=as_json)


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
def add_vhost(name: str, description: str, client: ManagementClient, *, as_json: bool) -> None:
    """Add the virtual host NAME. The user who adds it gets all permissions in it."""
    client.ask("PUT", f"/vhosts/{part(name)}", {"description": description} if description else {})
    echo_result({"vhost": name}, f"added virtual host {name}", as_json=as_json)


@vhost_command.command("delete")
@click.argument("name")
@click.confirmation_option(prompt="Delete the virtual host with all queues and messages in it?")
@management_option
@json_option
def delete_vhost(name: str, client: ManagementClient, *, as_json: bool) -> None:
    """Delete the virtual host NAME, with everything in it."""
    client.ask("DELETE", f"/vhosts/{part(name)}")
    echo_result({"deleted": name}, f"deleted virtual host {name}", as_json=as_json)
