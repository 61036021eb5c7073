"""`amqp://user:password@host:port/virtual-host?option=value`: where and how to connect.

| Option | Meaning |
|---|---|
| heartbeat | seconds, 0: none (default 60) |
| connection_timeout | milliseconds for TCP, TLS and the handshake together (default 30000) |
| request_timeout | milliseconds for the answer to a request or the confirm of a publish, 0: no limit (default 120000) |
| blocked_timeout | milliseconds that a publish waits while the broker blocks, 0: no limit (default) |
| channel_max, frame_max | limits to propose |
| message_size_max | octets; a larger message ends the connection (default 134217728, 0: no limit) |
| auth_mechanism | plain, amqplain, scram-sha-256 or external |
| cacertfile, certfile, keyfile | PEM files for amqps |
| verify | verify_peer (default) or verify_none |

The names are RabbitMQ's. Names and values are percent-encoded: the virtual host `/ojs` is written `%2Fojs`. Without a
path the virtual host is `/`.

The nodes of a cluster share a URI, `amqp://user:password@a:5672,b:5672,c/virtual-host`, or have one each, with a comma
before each further `amqp://`. They must name the same virtual host and user; the timeouts are those of the first. With
several nodes, connection_timeout applies to each of them, and is 10000 by default: the next one may be alive.
"""

import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from waybill.engine.amqp091.client.settings import (
    DEFAULT_CHANNEL_MAX,
    DEFAULT_FRAME_MAX,
    DEFAULT_HEARTBEAT_S,
    DEFAULT_MESSAGE_SIZE_MAX,
    ConnectionSettings,
)
from waybill.transport.tls import client_context

PORTS: Final = {"amqp": 5672, "amqps": 5671}
MECHANISMS: Final = {
    "plain": "PLAIN",
    "amqplain": "AMQPLAIN",
    "scram-sha-256": "SCRAM-SHA-256",
    "external": "EXTERNAL",
}
DEFAULT_CONNECT_TIMEOUT_S: Final = 30.0
CLUSTER_CONNECT_TIMEOUT_S: Final = 10.0
"""The default where there is another node to try."""
MAX_NODES: Final = 64
DEFAULT_REQUEST_TIMEOUT_S: Final = 120.0
MAX_SHORT: Final = 0xFFFF
MAX_LONG: Final = 0xFFFFFFFF
_NEXT_URI: Final = re.compile(r",\s*(?=amqps?://)", re.IGNORECASE)


class InvalidURI(ValueError):
    """An invalid URI. The text never repeats the URI, which may contain a password."""


@dataclass(frozen=True)
class BrokerAddress:
    """A broker, a login and the options of the connection. `others` are the further nodes of a cluster."""

    host: str
    port: int
    settings: ConnectionSettings
    tls: bool = False
    connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S
    request_timeout_s: float | None = DEFAULT_REQUEST_TIMEOUT_S
    blocked_timeout_s: float | None = None
    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = field(default=None, repr=False)
    verify: bool = True
    others: tuple["BrokerAddress", ...] = ()

    def __str__(self) -> str:
        """The URI without the login, for logs and errors."""
        if len({one.tls for one in self.nodes}) > 1:
            return ",".join(str(one) for one in self.nodes)
        scheme = "amqps" if self.tls else "amqp"
        hosts = ",".join(one.host_and_port for one in self.nodes)
        return f"{scheme}://{hosts}/{quote(self.settings.virtual_host, safe='')}"

    @property
    def host_and_port(self) -> str:
        """The host and port of this node alone."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def nodes(self) -> tuple["BrokerAddress", ...]:
        """The nodes, in the order of the URI."""
        return (replace(self, others=()), *self.others)

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context, None without TLS. Raises OSError or ssl.SSLError for unusable files."""
        if not self.tls:
            return None
        return client_context(authority=self.authority, certificate=self.certificate, key=self.key, verify=self.verify)


def one_uri(uris: str | Sequence[str]) -> str:
    """Combine a list of URIs into one URI. Raises InvalidURI for an empty list."""
    if isinstance(uris, str):
        return uris
    if not uris:
        raise InvalidURI("the list of URIs is empty")
    return ",".join(uris)


def parse_uri(uri: str | Sequence[str], *, name: str = "") -> BrokerAddress:
    """Parse a URI or a list of them; `name` is the connection's name for the broker. Raises InvalidURI."""
    each = [single for part in _NEXT_URI.split(one_uri(uri)) for single in _nodes_of(part)]
    if len(each) > MAX_NODES:
        raise InvalidURI(f"an AMQP URI names at most {MAX_NODES} nodes")
    timeout_s = DEFAULT_CONNECT_TIMEOUT_S if len(each) == 1 else CLUSTER_CONNECT_TIMEOUT_S
    first, *others = [_parse_node(single, name, timeout_s) for single in each]
    login = first.settings.virtual_host, first.settings.user
    if any((one.settings.virtual_host, one.settings.user) != login for one in others):
        raise InvalidURI("the URIs of a cluster must name the same virtual host and the same user")
    return replace(first, others=tuple(others))


def _nodes_of(uri: str) -> list[str]:
    """The URI of each host: commas separate the hosts, not what is before the @."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return [uri]  # For `_parse_node` to explain.
    login, at, hosts = parts.netloc.rpartition("@")
    if "," not in hosts:
        return [uri]
    each = hosts.split(",")
    if not all(each):
        raise InvalidURI("there is an empty host in the AMQP URI: one comma stands between two hosts")
    return [urlunsplit(parts._replace(netloc=f"{login}{at}{host}")) for host in each]


def _parse_node(uri: str, name: str, default_timeout_s: float) -> BrokerAddress:
    try:
        parts = urlsplit(uri)
        port = parts.port  # Within 0 to 65535, or it raises.
    except ValueError:
        raise InvalidURI("the host of the AMQP URI is malformed, or its port is not a number from 0 to 65535") from None
    if parts.scheme not in PORTS or not uri[len(parts.scheme) :].startswith("://"):
        raise InvalidURI("an AMQP URI starts with amqp:// or amqps://")
    if parts.fragment:
        raise InvalidURI("an AMQP URI has no fragment: percent-encode '#' in names and passwords as %23")
    if "/" in parts.path[1:]:
        raise InvalidURI("a '/' in the virtual host is written %2F")
    options = _options(parts.query)
    settings = ConnectionSettings(
        user="guest" if parts.username is None else unquote(parts.username),
        password="guest" if parts.password is None else unquote(parts.password),
        virtual_host=unquote(parts.path[1:]) or "/",
        mechanism=_choice(options, "auth_mechanism", MECHANISMS, "plain"),
        heartbeat_s=_number(options, "heartbeat", DEFAULT_HEARTBEAT_S, MAX_SHORT),
        channel_max=_number(options, "channel_max", DEFAULT_CHANNEL_MAX, MAX_SHORT),
        frame_max=_number(options, "frame_max", DEFAULT_FRAME_MAX, MAX_LONG),
        message_size_max=_number(options, "message_size_max", DEFAULT_MESSAGE_SIZE_MAX, MAX_LONG) or MAX_LONG,
        name=name,
    )
    timeout_ms = _number(options, "connection_timeout", int(default_timeout_s * 1000), MAX_LONG)
    request_timeout_ms = _number(options, "request_timeout", int(DEFAULT_REQUEST_TIMEOUT_S * 1000), MAX_LONG)
    blocked_timeout_ms = _number(options, "blocked_timeout", 0, MAX_LONG)
    verify = _choice(options, "verify", {"verify_peer": "yes", "verify_none": "no"}, "verify_peer") == "yes"
    files = {option: _path(options, option) for option in ("cacertfile", "certfile", "keyfile")}
    if options:
        raise InvalidURI(f"the AMQP URI has unknown options: {', '.join(sorted(options))}")
    return BrokerAddress(
        host=unquote(parts.hostname or "localhost"),
        port=PORTS[parts.scheme] if port is None else port,
        settings=settings,
        tls=parts.scheme == "amqps",
        connect_timeout_s=timeout_ms / 1000,
        request_timeout_s=request_timeout_ms / 1000 or None,
        blocked_timeout_s=blocked_timeout_ms / 1000 or None,
        authority=files["cacertfile"],
        certificate=files["certfile"],
        key=files["keyfile"],
        verify=verify,
    )


def _options(query: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise InvalidURI("the options of the AMQP URI are not name=value pairs") from None


def _number(options: dict[str, str], name: str, default: int, highest: int) -> int:
    text = options.pop(name, None)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) > highest:
        raise InvalidURI(f"the option {name} of the AMQP URI must be a number up to {highest}")
    return int(text)


def _choice(options: dict[str, str], name: str, values: dict[str, str], default: str) -> str:
    value = values.get(options.pop(name, default).lower())
    if value is None:
        raise InvalidURI(f"the option {name} of the AMQP URI must be one of {', '.join(values)}")
    return value


def _path(options: dict[str, str], name: str) -> Path | None:
    text = options.pop(name, "")
    return Path(text) if text else None
