"""A broker in this process, made from the configuration; SIGHUP reloads the configuration."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator
from typing import Any, Final

import click

from waybill.broker import Broker, FirstUser
from waybill.cli.definitions import read_document
from waybill.cli.settings_options import Source
from waybill.cli.text_log import formatter_of, keep_migrations_only
from waybill.model.errors import InvalidArgument
from waybill.model.permission import Permission
from waybill.settings import SETTINGS, Configuration, InvalidConfiguration

GUEST: Final = ("guest", "guest")

logger: Final = logging.getLogger("waybill.broker")


def make_broker(configuration: Configuration) -> Broker:
    """The broker of a configuration. Raises click's errors."""
    definitions = configuration.path("definitions")
    certificate, key, authority = (configuration.path(f"amqps.{name}") for name in ("certificate", "key", "ca"))
    try:
        return Broker(
            host=configuration.text("amqp.host"),
            port=configuration.integer("amqp.port"),
            data_dir=configuration.data_dir,
            memory_limit_bytes=configuration.integer_or_none("alarms.memory_limit"),
            disk_free_limit_bytes=configuration.integer("alarms.disk_free_limit"),
            name=configuration.text("node_name"),
            tls_certificate=certificate,
            tls_key=key,
            tls_ca=authority,
            verify_peer=configuration.is_on("amqps.verify_peer"),
            tls_port=configuration.integer("amqps.port"),
            certificate_login_from=configuration.text("amqps.login_from"),
            strict_amqp10=configuration.is_on("amqp10.strict"),
            auto_create_queues=configuration.is_on("amqp10.auto_create"),
            users=_first_users(configuration),
            limits=configuration.limits(),
            definitions=None if definitions is None else read_document(definitions),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        files = ", ".join(str(one) for one in (certificate, key, authority) if one is not None)
        raise click.ClickException(f"cannot use the TLS files {files}: {error}") from None


@contextlib.asynccontextmanager
async def started(broker: Broker) -> AsyncIterator[Broker]:
    """Run a broker. Until it has started, SIGTERM and Ctrl-C end the process at once.

    The recovery of a large directory takes long, and the loop sees no signal meanwhile. It loses nothing if it is
    killed.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGINT)}
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(broker)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        yield broker


@contextlib.asynccontextmanager
async def watched(broker: Broker, failed: asyncio.Future[None]) -> AsyncIterator[Broker]:
    """Do the same, and give `failed` the error of a broker that fails."""

    def tell(watching: asyncio.Future[None]) -> None:
        if not watching.cancelled() and (error := watching.exception()) is not None and not failed.done():
            failed.set_exception(error)

    async with started(broker):
        watching = asyncio.ensure_future(broker.wait_stopped())
        watching.add_done_callback(tell)
        try:
            yield broker
        finally:
            watching.cancel()


async def until_stopped(failed: asyncio.Future[None], stopping: asyncio.Event) -> None:
    """Wait for the event. Raises what `failed`, a broker's `wait_stopped`, raises before."""
    stopped: asyncio.Future[Any] = asyncio.ensure_future(stopping.wait())
    await asyncio.wait([failed, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if failed.done():
        await failed
    failed.cancel()


def _first_users(configuration: Configuration) -> list[FirstUser]:
    """The users of a new data directory. Raises ValueError for an invalid pattern."""
    for user in configuration.users:
        for host, patterns in user.permissions.items():
            try:
                Permission(*patterns)
            except InvalidArgument as error:
                raise ValueError(f"{configuration['users'].place}: users.{user.name}, {host!r}: {error}") from None
    return [FirstUser(one.name, one.password, one.tags, one.permissions) for one in configuration.users]


def set_up_log(configuration: Configuration) -> None:
    """Configure logging to standard error; may be called again."""
    level = configuration.text("log.level").upper()
    handler = logging.StreamHandler()
    handler.setFormatter(formatter_of(configuration.text("log.format"), "server"))
    logging.basicConfig(handlers=[handler], level=level, force=True)
    keep_migrations_only()


class Reloader:
    """Reads the configuration again at each SIGHUP, and applies the settings that can change at run time."""

    def __init__(self, broker: Broker, source: Source, configuration: Configuration) -> None:
        self._broker = broker
        self._source = source
        self._configuration = configuration

    def listen(self) -> None:
        """Reload at SIGHUP from now on."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)

    def reload(self) -> None:
        """Apply changed settings. An invalid configuration changes nothing."""
        try:
            wanted = self._source.load()
        except InvalidConfiguration as error:
            for problem in error.problems:
                logger.error("the configuration was not reloaded: %s", problem)  # noqa: TRY400 - not a bug
            return
        changed = [
            setting for setting in SETTINGS if wanted[setting.name].value != self._configuration[setting.name].value
        ]
        for setting in changed:
            if setting.reloads:
                self._configuration = self._configuration.replaced(setting.name, wanted[setting.name])
            else:
                place = wanted[setting.name].place
                logger.warning("%s (%s) cannot change while the broker runs: restart the broker", setting.name, place)
        self._apply()
        names = ", ".join(setting.name for setting in changed if setting.reloads)
        logger.info("reloaded the configuration: %s", f"{names} changed" if names else "no setting changed")

    def _apply(self) -> None:
        configuration = self._configuration
        self._broker.reconfigure(
            memory_limit_bytes=configuration.integer_or_none("alarms.memory_limit"),
            disk_free_limit_bytes=configuration.integer("alarms.disk_free_limit"),
            limits=configuration.limits(),
            strict_amqp10=configuration.is_on("amqp10.strict"),
            auto_create_queues=configuration.is_on("amqp10.auto_create"),
        )
        certificate, key = configuration.path("amqps.certificate"), configuration.path("amqps.key")
        if certificate is not None and key is not None:
            # Usually the file names stay the same and the contents change.
            try:
                self._broker.renew_certificate(certificate, key)
            except (OSError, ValueError) as error:
                logger.error("the certificate %s was not renewed: %s", certificate, error)  # noqa: TRY400 - not a bug
        set_up_log(configuration)


def own_login(configuration: Configuration, virtual_host: str) -> tuple[str, str]:
    """The login of this process at its own broker: a configured user with all permissions, or guest."""
    for user in configuration.users:
        if user.permissions.get(virtual_host) == (".*", ".*", ".*"):
            return user.name, user.password
    return GUEST
