"""`waybill broker`: a stand-alone broker."""

import asyncio
import logging
import os
import signal
from pathlib import Path

import click

from waybill.broker import Broker, BrokerFailed
from waybill.cli.definitions import read_document, show_report
from waybill.cli.garbage import collect_rarely
from waybill.cli.ranges import PORT
from waybill.model.errors import DefinitionsLost, UnsupportedStoreVersion
from waybill.node.certificate import DISTINGUISHED_NAME, LOGIN_FROM
from waybill.transport.descriptors import raise_descriptor_limit
from waybill.transport.loop import run

FILE = click.Path(dir_okay=False, exists=True, path_type=Path)


def default_data_dir() -> Path:
    """The directory for a user's data (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "waybill"


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=5672, type=PORT, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where messages are kept.  [default: ~/.local/share/waybill]",
)
@click.option("--memory", is_flag=True, help="Keep everything in memory: nothing outlives the process.")
@click.option("--definitions", type=FILE, help="Import RabbitMQ's JSON of users, policies, queues and more at start.")
@click.option("--tls-port", default=5671, type=PORT, show_default=True, help="Port for TLS; 0 takes a free one.")
@click.option("--tls-certificate", type=FILE, help="PEM file with the certificate chain of this broker.")
@click.option("--tls-key", type=FILE, help="PEM file with its private key.")
@click.option("--tls-ca", type=FILE, help="PEM file with the authority of clients' certificates.")
@click.option("--verify-peer", is_flag=True, help="Refuse TLS clients without a certificate of --tls-ca.")
@click.option(
    "--certificate-login-from",
    type=click.Choice(LOGIN_FROM),
    default=DISTINGUISHED_NAME,
    show_default=True,
    help="Which part of a client's certificate names the user (SASL EXTERNAL).",
)
@click.option(
    "--strict-amqp10",
    is_flag=True,
    help="Enforce rules of AMQP 1.0 that RabbitMQ waives (see docs/reference/amqp-1.0.md).",
)
def command(
    host: str,
    port: int,
    data_dir: Path | None,
    definitions: Path | None,
    tls_port: int,
    tls_certificate: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    certificate_login_from: str,
    *,
    strict_amqp10: bool,
    memory: bool,
    verify_peer: bool,
) -> None:
    """Run an AMQP 0-9-1 and 1.0 broker until SIGTERM or Ctrl-C, which drain it.

    Prints `ready amqp://...` when it accepts connections. On a new data directory guest/guest may log in, from this
    machine only.
    """
    if memory and data_dir is not None:
        raise click.UsageError("--memory and --data-dir cannot be combined.")
    directory = None if memory else data_dir or default_data_dir()
    raise_descriptor_limit()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    try:
        broker = Broker(
            host=host,
            port=port,
            data_dir=directory,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            tls_ca=tls_ca,
            verify_peer=verify_peer,
            tls_port=tls_port,
            certificate_login_from=certificate_login_from,
            strict_amqp10=strict_amqp10,
            definitions=None if definitions is None else read_document(definitions),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        files = ", ".join(str(one) for one in (tls_certificate, tls_key, tls_ca) if one is not None)
        raise click.ClickException(f"cannot use the TLS files {files}: {error}") from None
    try:
        run(_serve(broker))
    except OSError as error:
        raise click.ClickException(f"cannot start on {host}:{port}: {error}") from None
    except (BrokerFailed, DefinitionsLost, UnsupportedStoreVersion) as error:
        raise click.ClickException(str(error)) from None


async def _serve(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with broker:
        if broker.import_report is not None:
            show_report(broker.import_report)
        # With a backlog, a collection of the whole heap takes long.
        collect_rarely(young=50_000, whole_heap=1000)
        if broker.tls_port is not None:
            click.echo(f"ready amqps://{broker.host}:{broker.tls_port}/%2F")
        click.echo(f"ready {broker.uri().replace('guest:guest@', '')}")
        failed = asyncio.ensure_future(broker.wait_stopped())
        stopped = asyncio.ensure_future(stopping.wait())
        await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if failed.done():
            await failed
        failed.cancel()
