"""`waybill broker`: a stand-alone broker."""

import asyncio
import contextlib
import ssl

import click

from waybill.broker import Broker, BrokerFailed
from waybill.cli.broker_change import policy_command, user_command, vhost_command
from waybill.cli.broker_list import close_command, list_command, show_command
from waybill.cli.definitions import show_report
from waybill.cli.echo import echo
from waybill.cli.failure import not_started
from waybill.cli.garbage_collection import collect_rarely
from waybill.cli.http_settings import tls_context
from waybill.cli.own_broker import Reloader, make_broker, set_up_log, started, until_stopped
from waybill.cli.settings_options import BROKER_TABLES, Source, loaded, settings_options
from waybill.cli.stop_signals import stop_event
from waybill.model.errors import DefinitionsLost, UnsupportedStoreVersion
from waybill.settings import Configuration
from waybill.transport.allocator import return_large_blocks
from waybill.transport.descriptors import raise_descriptor_limit
from waybill.transport.loop import run

SHORT = {
    "amqp.host": "--host",
    "amqp.port": "--port",
    "amqps.port": "--tls-port",
    "amqps.certificate": "--tls-certificate",
    "amqps.key": "--tls-key",
    "amqps.ca": "--tls-ca",
    "amqps.verify_peer": "--verify-peer",
    "amqps.login_from": "--certificate-login-from",
    "amqp10.strict": "--strict-amqp10",
    "management.enabled": "--management",
}


@click.group(invoke_without_command=True)
@settings_options(BROKER_TABLES, SHORT)
@click.pass_context
def command(ctx: click.Context, source: Source) -> None:
    """Run an AMQP broker until SIGTERM or Ctrl-C, which drain it; or operate a running one.

    Prints `ready amqp://...` when it accepts connections. With a new data directory, guest/guest may log in, from this
    machine only. SIGHUP reloads the configuration file. `waybill config show` lists all settings: each is an option
    here, including those of [limits]. --management serves RabbitMQ's management API, which the commands below use.
    """
    if ctx.invoked_subcommand is not None:
        return
    configuration = loaded(source)
    tls = management_tls(configuration)
    raise_descriptor_limit()
    return_large_blocks()
    set_up_log(configuration)
    broker = make_broker(configuration)
    try:
        run(_serve(broker, Reloader(broker, source, configuration), configuration, tls))
    except OSError as error:
        raise not_started(error) from None
    except (BrokerFailed, DefinitionsLost, UnsupportedStoreVersion) as error:
        raise click.ClickException(str(error)) from None


for one in (list_command, show_command, close_command, user_command, policy_command, vhost_command):
    command.add_command(one)


def management_tls(configuration: Configuration) -> ssl.SSLContext | None:
    """The TLS context of the management API. Raises click.ClickException for files that cannot be used."""
    certificate, key = configuration.path("management.certificate"), configuration.path("management.key")
    return None if certificate is None or key is None else tls_context(certificate, key)


async def _serve(broker: Broker, reloader: Reloader, configuration: Configuration, tls: ssl.SSLContext | None) -> None:
    stopping = stop_event()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(started(broker))
        if configuration.is_on("management.enabled"):
            from waybill.management.serving import ManagementServer

            host, port = configuration.text("management.host"), configuration.integer("management.port")
            server = await stack.enter_async_context(ManagementServer(broker, host, port, tls=tls))
            echo(f"ready {server.url}/api")
        reloader.listen()
        if broker.import_report is not None:
            show_report(broker.import_report)
        # With a backlog of messages, a collection of the whole heap takes too long.
        collect_rarely(whole_heap=60_000)
        if broker.tls_port is not None:
            echo(f"ready amqps://{broker.host}:{broker.tls_port}/%2F")
        echo(f"ready amqp://{broker.address}/%2F")
        await until_stopped(asyncio.ensure_future(broker.wait_stopped()), stopping)
