"""The options that say which broker a command talks to, and what is named how there.

The first that is given counts: --uri, --context, WAYBILL_URL (or WAYBILL_URI), WAYBILL_CONTEXT, the context in use, the
broker of this machine.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from waybill.cli import contexts
from waybill.cli.contexts import Context

if TYPE_CHECKING:
    from waybill.client.uri import Address
    from waybill.ojs import Jobs, Topology

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URI: Final = "amqp://guest:guest@localhost:5672/%2Fojs"
ID_WIDTH: Final = 36
"""What the id of a job takes: it is of no use cut short."""

json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@dataclass(frozen=True)
class Target:
    """A broker, and how things are named there. `context` is the name of the context that it came from."""

    uri: str = dataclasses.field(repr=False)
    context: str | None = None
    management: str | None = dataclasses.field(default=None, repr=False)
    names: str = "spec"
    prefix: str = ""
    queue_type: str = "classic"

    @property
    def address(self) -> Address:
        """The URI read. Raises click.UsageError, which never repeats it."""
        from waybill.client.uri import InvalidURI, parse_uri

        try:
            return parse_uri(self.uri)
        except InvalidURI as error:
            raise click.UsageError(str(error)) from None

    def topology(self) -> Topology:
        """What is declared on this broker."""
        from waybill.ojs import SPEC, WEB, Topology

        return Topology(
            names=WEB if self.names == "web" else SPEC,
            prefix=self.prefix,
            queue_type="quorum" if self.queue_type == "quorum" else "classic",
        )

    def jobs(self) -> Jobs:
        """The jobs on this broker."""
        from waybill.ojs import Jobs

        _ = self.address
        return Jobs(self.uri, topology=self.topology())


def broker_options(command: F) -> F:
    """Give a command the options of a broker; it takes what they say as `target`."""

    @click.option("--uri", "--url", "uri", help="The broker: amqp://user:password@host/vhost.  [WAYBILL_URL]")
    @click.option("--context", "context_name", help="A broker of `waybill context list`.  [WAYBILL_CONTEXT]")
    @click.option("--prefix", help="What all names on the broker begin with, for tenants.")
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
        target = chosen(uri, context_name)
        changes = {"prefix": prefix, "names": names}
        target = dataclasses.replace(target, **{key: value for key, value in changes.items() if value is not None})
        return command(*arguments, target=target, **options)

    return with_target  # type: ignore[return-value]


def chosen(uri: str | None, context_name: str | None) -> Target:
    """Find the broker that is meant. Raises click.UsageError for a context that is not there."""
    if uri is not None and context_name is not None:
        raise click.UsageError("--uri and --context exclude each other.")
    if uri is None and context_name is None:
        uri = os.environ.get("WAYBILL_URL") or os.environ.get("WAYBILL_URI")
    if uri is not None:
        return Target(uri)
    try:
        known = contexts.load()
    except contexts.UnusableContexts as error:
        raise click.ClickException(str(error)) from None
    name = context_name or os.environ.get("WAYBILL_CONTEXT") or known.current
    if name is None:
        return Target(DEFAULT_URI)
    if name not in known.contexts:
        there = ", ".join(sorted(known.contexts)) or "none yet: `waybill context add NAME URI`"
        raise click.UsageError(f"there is no context {name!r}; there is {there}")
    return target_of(name, known.contexts[name])


def target_of(name: str, context: Context) -> Target:
    """The broker of a context."""
    return Target(context.uri, name, context.management, context.names, context.prefix, context.queue_type)
