"""`waybill federation`: a proxy for the servers of several regions, and a preview of routing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from waybill.cli.echo import echo
from waybill.cli.failure import not_started
from waybill.cli.garbage_collection import collect_rarely
from waybill.cli.http_settings import read_key_ring, tls_context
from waybill.cli.ranges import PORT
from waybill.cli.stop_signals import started_unless_stopped, stop_event
from waybill.cli.target import json_option
from waybill.cli.text_log import log_format_option, log_in
from waybill.settings.configuration import is_loopback
from waybill.transport.allocator import return_large_blocks
from waybill.transport.descriptors import raise_descriptor_limit
from waybill.transport.loop import run

if TYPE_CHECKING:
    import ssl

    from waybill.backend.keys import KeyRing
    from waybill.federation.configuration import Federation
    from waybill.federation.layer import Layer

STRATEGIES: Final = (
    *("affinity", "overflow", "round-robin", "latency-based", "geo-pin", "active-passive", "geographic"),
)
_FILE: Final = click.Path(dir_okay=False, exists=True, path_type=Path)

config_option: Final = click.option(
    "--config", required=True, type=_FILE, help="The TOML or JSON file that describes the federation."
)


@click.group()
def command() -> None:
    """Route jobs to the servers of several regions, described in a file."""


@command.command()
@config_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=PORT, default=8080, show_default=True, help="Port; 0 chooses a free one.")
@click.option("--keys", type=_FILE, help="A file of API keys: see `waybill key add`. Needed beyond loopback.")
@click.option("--tls-certificate", type=_FILE, help="Serve HTTPS with this certificate chain (PEM).")
@click.option("--tls-key", type=_FILE, help="The private key of the certificate (PEM).")
@log_format_option
def serve(
    config: Path,
    host: str,
    port: int,
    keys: Path | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    log_format: str,
) -> None:
    """Serve all regions as one, until SIGTERM or Ctrl-C. Prints `ready http://...` when it accepts connections."""
    if keys is None and not is_loopback(host):
        raise click.UsageError(f"{host} is reachable from other machines: use --keys. See `waybill key add --help`.")
    if (tls_certificate is None) != (tls_key is None):
        raise click.UsageError("--tls-certificate and --tls-key must be used together.")
    ring = None if keys is None else read_key_ring(keys)
    tls = None if tls_certificate is None or tls_key is None else tls_context(tls_certificate, tls_key)
    federation = _read(config)
    raise_descriptor_limit()
    return_large_blocks()
    log_in(log_format, "server")
    try:
        run(_serve(federation, host, port, ring, tls))
    except OSError as error:
        raise not_started(error) from None


@command.command()
@config_option
@json_option
def regions(config: Path, *, as_json: bool) -> None:
    """Check all regions once, and show their health. Fails if none is healthy."""

    def look(layer: Layer) -> dict[str, Any]:
        return layer.registry()

    found = run(_look(_read(config), look))
    if as_json:
        echo(json.dumps(found, indent=2))
    else:
        _show_regions(found["regions"])
    if not any(one["status"] == "healthy" for one in found["regions"]):
        raise click.exceptions.Exit(1)


@command.command()
@config_option
@click.option("--queue", default="default", show_default=True, help="The queue of the job.")
@click.option("--strategy", type=click.Choice(STRATEGIES), help="The job's own strategy.  [default: that of the file]")
@click.option("--region", help="The region that the job is pinned to.")
@click.option("--tag", "tags", multiple=True, help="A tag of the job; may be given several times.")
@click.option("--meta", "meta", multiple=True, help="An attribute of the job's metadata, NAME=VALUE.")
@json_option
def route(
    config: Path,
    queue: str,
    strategy: str | None,
    region: str | None,
    tags: tuple[str, ...],
    meta: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Show which region a job would go to now. Fails if there is none."""
    attributes: dict[str, str] = {}
    for one in meta:
        name, is_given, value = one.partition("=")
        if not is_given:
            raise click.UsageError(f"--meta {one}: use NAME=VALUE.")
        attributes[name] = value
    attributes |= {} if strategy is None else {"ojs.federation.region_affinity": strategy}
    attributes |= {} if region is None else {"ojs.federation.region": region}
    job = {"queue": queue, "tags": list(tags), "meta": attributes}
    found = run(_look(_read(config), lambda layer: layer.resolve(job)))
    if as_json:
        echo(json.dumps(found, indent=2))
    else:
        echo(f"{found['target_region'] or 'no region'} ({found['strategy']})")
        for one in found["candidates"]:
            echo(f"  {one['id']}: {one['reason']}")
    if found["target_region"] is None:
        raise click.exceptions.Exit(1)


def _read(path: Path) -> Federation:
    from waybill.federation.configuration import InvalidFederation, read_file

    try:
        return read_file(path)
    except InvalidFederation as error:
        raise click.ClickException(f"{path}: {error}") from None


def _layer_of(federation: Federation) -> Layer:
    from waybill.federation.configuration import InvalidFederation

    try:
        from waybill.federation.layer import Layer

        return Layer(federation)
    except (InvalidFederation, ImportError) as error:
        raise click.ClickException(str(error)) from None


async def _look(federation: Federation, look: Callable[[Layer], dict[str, Any]]) -> dict[str, Any]:
    from waybill.backend.errors import RequestRefused

    layer = _layer_of(federation)
    try:
        await layer.regions.check()
        return look(layer)
    except RequestRefused as error:
        raise click.ClickException(error.message) from None
    finally:
        await layer.close()


async def _serve(
    federation: Federation, host: str, port: int, keys: KeyRing | None, tls: ssl.SSLContext | None
) -> None:
    from waybill.federation.serving import FederationServing

    stopping = stop_event()
    serving = FederationServing(_layer_of(federation), host, port, keys=keys, tls=tls)
    async with started_unless_stopped(serving, stopping) as is_started:
        if is_started:
            collect_rarely(whole_heap=60_000)
            echo(f"ready {serving.url}")
            await stopping.wait()


def _show_regions(found: list[dict[str, Any]]) -> None:
    width = max(len(one["id"]) for one in found)
    for one in found:
        state = one.get("problem") or f"{one['latency_ms']:g} ms"
        echo(f"{one['id']:<{width}}  {one['status']:<9}  {one['circuit_breaker']:<9}  {state}")
