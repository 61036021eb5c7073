"""The options for the broker of a command, and for the names of its queues.

Precedence is as for `Jobs()`: see `waybill.ojs.connection.target`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import click

from waybill.ojs.connection import target
from waybill.ojs.connection.contexts import Context
from waybill.ojs.connection.target import BrokerTarget
from waybill.ojs.errors import UnknownContext, UnusableContexts

if TYPE_CHECKING:
    from waybill.client.uri import BrokerAddress, InvalidURI
    from waybill.ojs import Jobs

F = TypeVar("F", bound=Callable[..., Any])

ID_WIDTH: Final = 36
"""The width of a column of job ids, which must not be truncated."""

create_option: Final = click.option("--create", is_flag=True, help="Declare missing queues.")
json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Target(BrokerTarget):
    """The broker of a command."""

    @property
    def address(self) -> BrokerAddress:
        """The parsed URI. Raises click.UsageError, which never repeats it."""
        from waybill.client.uri import InvalidURI, parse_uri

        try:
            return parse_uri(self.uri)
        except InvalidURI as error:
            raise self.refused(error) from None

    def refused(self, error: InvalidURI) -> click.UsageError:
        """Return the error of a command for an invalid URI, which may be that of a server over HTTP."""
        text = str(error)
        if self.uri.lower().startswith(("http://", "https://")):
            text = "this command needs the broker, not a server over HTTP: its URL begins with amqp:// or amqps://"
        return click.UsageError(f"{text}. Set it with --uri, --context or WAYBILL_URL.")

    def changed(self, **changes: object) -> Self:
        """Return the same broker with the changes that are not None."""
        given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        if given.get("queue_type") == "classic":
            # Classic queues are on one node.
            given |= {"replicas": None, "leader_locator": None}
        return dataclasses.replace(self, **given)

    def jobs(self, *, create_queues: bool = False) -> Jobs:
        """A client for the jobs of this broker."""
        from waybill.ojs import Jobs

        _ = self.address
        return Jobs(self.uri, topology=self.topology(), create_queues=create_queues or None)


def broker_options(command: F) -> F:
    """Add the options of a broker to a command, which gets them as `target`."""

    @click.option(
        "--uri",
        "--url",
        "uri",
        help="Broker URL, or the nodes of a cluster: amqp://user:password@a,b,c/vhost.  [WAYBILL_URL]",
    )
    @click.option("--context", "context_name", help="Broker from `waybill context list`.  [WAYBILL_CONTEXT]")
    @click.option("--prefix", help="Prefix of all names on the broker, for tenants.")
    @click.option("--names", type=click.Choice(["spec", "web"]), help="The naming profile.  [default: spec]")
    @functools.wraps(command)
    def with_target(
        *arguments: object,
        uri: str | None,
        context_name: str | None,
        prefix: str | None,
        names: str | None,
        **options: object,
    ) -> object:
        found = chosen(uri, context_name).changed(prefix=prefix, names=names)
        return command(*arguments, target=found, **options)

    return with_target  # type: ignore[return-value]


def chosen(uri: str | None, context_name: str | None) -> Target:
    """Find the broker. Raises click.UsageError for an unknown context."""
    if uri is not None and context_name is not None:
        raise click.UsageError("--uri and --context cannot be used together.")
    try:
        return Target(**vars(target.chosen(uri, context_name)))
    except UnknownContext as error:
        raise click.UsageError(str(error)) from None
    except UnusableContexts as error:
        raise click.ClickException(str(error)) from None


def target_of(name: str, context: Context) -> Target:
    """The broker of a context."""
    return Target(**vars(target.broker_of(name, context)))
