"""Looks up the binding of a URI: AMQP to a broker, or another one, such as HTTP to a server.

Each binding except AMQP is a separate package, loaded when needed.

It is found by name and not imported here, because it imports this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from waybill.client.uri import one_uri
from waybill.ojs.topology.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waybill.client import ReconnectPolicy
    from waybill.ojs.push.broker_substitute import BrokerSubstitute

BINDINGS: Final = {"http": "waybill.http", "https": "waybill.http", "federation": "waybill.http"}
"""The package of a scheme: it has `link.HttpLink`, and `worker.HttpWorker`. A federation is several servers."""


def find_broker(uri: str | Sequence[str] | None) -> tuple[str, Topology]:
    """Return the broker of a program, which may name none, and how queues are named there."""
    if uri is not None:
        return one_uri(uri), Topology()
    from waybill.ojs.connection.target import chosen  # noqa: PLC0415 - who gives a URI starts sooner

    broker = chosen()
    return broker.uri, broker.topology()


def is_remote(uri: str) -> bool:
    """Whether a URI names a server of another binding, and no broker."""
    return _package_of(uri) is not None


def link_of(uri: str, push_timeout_seconds: float, again: ReconnectPolicy | None) -> BrokerSubstitute | None:
    """Return what does the work of a broker where the URI names no broker. Raises ImportError for a missing extra."""
    package = _package_of(uri)
    if package is None:
        return None
    found: BrokerSubstitute = import_module(f"{package}.link").HttpLink(uri, push_timeout_seconds, again)
    return found


def worker_of(uri: str) -> type[Any] | None:
    """Return the class of workers where the URI names no broker."""
    package = _package_of(uri)
    if package is None:
        return None
    found: type[Any] = import_module(f"{package}.worker").HttpWorker
    return found


def _package_of(uri: str) -> str | None:
    # A URI that is wrong in any way is for the AMQP client to explain.
    return BINDINGS.get(uri.partition(":")[0].lower()) if isinstance(uri, str) else None
