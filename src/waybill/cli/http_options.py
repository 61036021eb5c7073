"""The options of the commands that serve HTTP, and what they stand for."""

from __future__ import annotations

import functools
import ipaddress
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from waybill.cli.ranges import PORT
from waybill.transport.tls import server_context

if TYPE_CHECKING:
    from waybill.backend.codec import Codec
    from waybill.backend.keys import KeyRing

F = TypeVar("F", bound=Callable[..., Any])

_FILE: Final = click.Path(dir_okay=False, exists=True, path_type=Path)


@dataclass(frozen=True)
class HttpSettings:
    """Where to listen, and who may come in. Without `keys` every program of this machine may."""

    host: str
    port: int
    keys: KeyRing | None
    tls: ssl.SSLContext | None
    allows_private: bool
    codec: Codec | None
    redacts: tuple[str, ...]


def http_options(command: F) -> F:
    """Add the options of an HTTP server to a command, which gets them as `http`."""

    @click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
    @click.option("--port", default=8080, type=PORT, show_default=True, help="Port to listen on; 0 takes a free one.")
    @click.option("--keys", type=_FILE, help="A file of API keys: see `waybill key`.")
    @click.option(
        "--tls-certificate", type=_FILE, help="Serve HTTPS with this certificate chain, PEM. Needs --tls-key."
    )
    @click.option("--tls-key", type=_FILE, help="The private key of the certificate, PEM.")
    @click.option(
        "--allow-private-webhooks",
        is_flag=True,
        help="Let webhooks go to this machine and its network, and without TLS.",
    )
    @click.option(
        "--codec-keys",
        type=_FILE,
        help="Encrypt and decrypt for tools with the keys in this file: see the documentation. Needs --keys.",
    )
    @click.option(
        "--redact",
        multiple=True,
        metavar="NAME",
        help="Hide arguments with this name in all that is shown; may have *. `--redact '*'` hides all arguments.",
    )
    @functools.wraps(command)
    def with_settings(
        *arguments: object,
        host: str,
        port: int,
        keys: Path | None,
        tls_certificate: Path | None,
        tls_key: Path | None,
        allow_private_webhooks: bool,
        codec_keys: Path | None,
        redact: tuple[str, ...],
        **options: object,
    ) -> object:
        http = _settings(
            host, port, keys, tls_certificate, tls_key, codec_keys, redact, allows_private=allow_private_webhooks
        )
        return command(*arguments, http=http, **options)

    return with_settings  # type: ignore[return-value]


def _settings(
    host: str,
    port: int,
    keys: Path | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    codec_keys: Path | None,
    redact: tuple[str, ...],
    *,
    allows_private: bool,
) -> HttpSettings:
    """Make settings of options. Raises click.ClickException for those that do not go together."""
    if keys is None and not is_loopback(host):
        raise click.UsageError(f"{host} can be reached by others: serve it with --keys. See `waybill key add --help`.")
    if (tls_certificate is None) != (tls_key is None):
        raise click.UsageError("--tls-certificate and --tls-key go together.")
    ring = None if keys is None else _read(keys)
    tls = None if tls_certificate is None or tls_key is None else _tls_context(tls_certificate, tls_key)
    if codec_keys is not None and keys is None:
        raise click.UsageError("--codec-keys needs --keys: the codec answers who shows an API key only.")
    codec = None if codec_keys is None else _read_codec(codec_keys)
    return HttpSettings(host, port, ring, tls, allows_private, codec, redact)


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(path: Path) -> KeyRing:
    from waybill.backend.keys import InvalidKeyFile, read_keys

    try:
        return read_keys(path)
    except InvalidKeyFile as error:
        raise click.ClickException(str(error)) from None


def _read_codec(path: Path) -> Codec:
    try:
        from waybill.backend.codec import InvalidCodecKeys, read_codec
    except ImportError:
        text = "--codec-keys needs the package cryptography: pip install 'waybill[encryption]'"
        raise click.ClickException(text) from None
    try:
        return read_codec(path)
    except InvalidCodecKeys as error:
        raise click.ClickException(str(error)) from None


def _tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    try:
        return server_context(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise click.ClickException(f"cannot use {certificate} with {key}: {error}") from None
