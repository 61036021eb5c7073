"""The settings of the HTTP server from the configuration."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from waybill.settings import Configuration
from waybill.settings.configuration import is_loopback
from waybill.transport.tls import server_context

if TYPE_CHECKING:
    from waybill.backend.codec import Codec
    from waybill.backend.keys import KeyRing


@dataclass(frozen=True)
class HttpSettings:
    """Where to listen, and who has access. Without `keys`, every program on this machine has access."""

    host: str
    port: int
    keys: KeyRing | None
    tls: ssl.SSLContext | None
    allows_private: bool
    codec: Codec | None
    redacts: tuple[str, ...]
    trace_url: str | None
    region: str | None
    request_limit: tuple[int, int] | None
    leased_memory: int


def http_settings(configuration: Configuration) -> HttpSettings:
    """Read the files that the configuration names. Raises click.ClickException if one cannot be used."""
    host = configuration.text("http.host")
    keys = configuration.path("keys")
    if keys is None and not is_loopback(host):
        raise click.UsageError(f"{host} is reachable from other machines: use --keys. See `waybill key add --help`.")
    certificate, key = configuration.path("http.certificate"), configuration.path("http.key")
    codec_keys = configuration.path("http.codec_keys")
    limit = configuration.integer_or_none("http.request_limit")
    return HttpSettings(
        host,
        configuration.integer("http.port"),
        None if keys is None else read_key_ring(keys),
        None if certificate is None or key is None else tls_context(certificate, key),
        configuration.is_on("http.allow_private_webhooks"),
        None if codec_keys is None else _read_codec(codec_keys),
        configuration.names("http.redact"),
        configuration.text_or_none("http.trace_url"),
        configuration.text_or_none("http.region"),
        None if limit is None else (limit, configuration.integer("http.request_window_s")),
        configuration.integer("http.leased_memory"),
    )


def read_key_ring(path: Path) -> KeyRing:
    """Read a file of keys. Raises click.ClickException."""
    from waybill.backend.keys import InvalidKeyFile, read_keys

    try:
        return read_keys(path)
    except InvalidKeyFile as error:
        raise click.ClickException(str(error)) from None


def _read_codec(path: Path) -> Codec:
    try:
        from waybill.backend.codec import InvalidCodecKeys, read_codec
    except ImportError:
        text = "--codec-keys needs the package cryptography: pip install 'waybill-amqp[encryption]'"
        raise click.ClickException(text) from None
    try:
        return read_codec(path)
    except InvalidCodecKeys as error:
        raise click.ClickException(str(error)) from None


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    try:
        return server_context(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise click.ClickException(f"cannot use {certificate} with {key}: {error}") from None
