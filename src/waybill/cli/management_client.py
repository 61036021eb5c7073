"""The management API of a running broker, for commands: the option, requests, and errors."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote, urlsplit

import click
import msgspec

from waybill.cli.failure import Failed

F = TypeVar("F", bound=Callable[..., Any])

VARIABLE: Final = "WAYBILL_MANAGEMENT"
DEFAULT_URL: Final = "http://guest:guest@127.0.0.1:15672"
TIMEOUT_SECONDS: Final = 30.0


@dataclass(frozen=True)
class ManagementClient:
    """A broker with a management API."""

    scheme: str
    host: str
    port: int
    login: str = field(repr=False)
    prefix: str = ""

    def __str__(self) -> str:
        """The address, without the login."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"

    def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401 - what the path has
        """Send a request to a path below /api. Raises Failed."""
        fields = {
            "Authorization": "Basic " + base64.b64encode(self.login.encode()).decode(),
            "Content-Type": "application/json",
            **(headers or {}),
        }
        octets = None if body is None else msgspec.json.encode(body)
        try:
            connection = self._connection()
            try:
                connection.request(method, f"{self.prefix}/api{path}", octets, fields)
                response = connection.getresponse()
                status, answer = response.status, response.read()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            hint = "run the broker with --management, or name the API with --management-url"
            raise Failed(f"no management API at {self}: {error}", hint) from None
        if status < 400:
            return _decoded(answer, str(self)) if answer else None
        raise _failure(status, answer, f"{self}{path}")

    def _connection(self) -> http.client.HTTPConnection:
        if self.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT_SECONDS, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_SECONDS)

    def all_of(self, path: str) -> list[dict[str, Any]]:
        """Return all pages of a list. Raises Failed."""
        found = self.ask("GET", path)
        return found if isinstance(found, list) else [found]


def _decoded(answer: bytes, where: str) -> object:
    try:
        return msgspec.json.decode(answer)
    except msgspec.DecodeError as error:
        raise Failed(
            f"{where} does not answer with JSON: {error}", "check that the URL is that of a management API"
        ) from None


def _failure(status: int, answer: bytes, where: str) -> Failed:
    reason = ""
    with contextlib.suppress(msgspec.DecodeError):
        found = msgspec.json.decode(answer)
        reason = str(found.get("reason", "")) if isinstance(found, dict) else ""
    if status == 401:
        hint = "check the user and password in the URL, and the user's tags and permissions"
        return Failed(f"refused: {reason or 'not authorised'}", hint)
    if status == 404:
        return Failed(f"not found: {reason if reason not in {'', 'Not Found'} else where}")
    return Failed(f"{status}: {reason or where}")


def management_option(command: F) -> F:
    """Add the option that names the API; the command gets a `ManagementClient` as `client`."""

    @click.option(
        "--management-url",
        help=f"Management API: http://user:password@host:port.  [{VARIABLE}; the context's; {DEFAULT_URL}]",
    )
    @functools.wraps(command)
    def with_client(*arguments: object, management_url: str | None, **options: object) -> object:
        return command(*arguments, client=_chosen(management_url), **options)

    return with_client  # type: ignore[return-value]


def _chosen(url: str | None) -> ManagementClient:
    """Return the chosen API. Raises click.UsageError."""
    if url is None:
        url = os.environ.get(VARIABLE)
    if url is None:
        from waybill.cli.target import chosen

        url = chosen(None, None).management
    parts = urlsplit(url or DEFAULT_URL)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1:
        raise click.UsageError("the management URL is http://user:password@host:port")
    login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
    default = 443 if parts.scheme == "https" else 80
    return ManagementClient(parts.scheme, parts.hostname, port or default, login, parts.path.rstrip("/"))


def part(name: str) -> str:
    """Return a name encoded as a segment of a path."""
    return quote(name, safe="")
