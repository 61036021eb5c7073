"""Shared by the commands that move messages between two brokers."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import click

from waybill.cli.failure import Failed, explained
from waybill.cli.target import Target, chosen
from waybill.cli.text_log import log_as_text
from waybill.client import ClientError
from waybill.move import MoveFailed
from waybill.ojs import InvalidJob, JobsError
from waybill.transport.loop import run

T = TypeVar("T")

from_option: Final = click.option(
    "--from",
    "source",
    required=True,
    metavar="BROKER",
    help="Source: amqp://user:password@host/vhost, or the name of a context.",
)
to_option: Final = click.option("--to", "goal", required=True, metavar="BROKER", help="Target, in the same form.")
users_option: Final = click.option(
    "--keep-users",
    is_flag=True,
    help="Keep the user ids of messages. The user at --to needs RabbitMQ's tag `impersonator`.",
)


def broker_of(text: str, **changes: str | int | None) -> Target:
    """Find a broker by its URL, or by the name of a context. Raises click.UsageError."""
    found = chosen(text, None) if "://" in text else chosen(None, text)
    _ = found.address
    return found.changed(**changes)


def run_moving(target: Target, stop: Callable[[], None], work: Coroutine[Any, Any, T]) -> T:
    """Run a move; SIGTERM and Ctrl-C let it finish the current batch. Raises Failed with a hint.

    Only connection events are logged: the move reports its own progress.
    """
    logging.getLogger("waybill.client").setLevel(logging.CRITICAL)
    logging.getLogger("waybill.ojs").setLevel(logging.CRITICAL)
    log_as_text("%(levelname)s %(message)s")

    async def stoppable() -> T:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        return await work

    try:
        return run(stoppable())
    except InvalidJob as error:
        raise click.UsageError(str(error)) from None
    except MoveFailed as error:
        raise Failed(str(error), "nothing is lost: fix the cause, then run the same command again") from None
    except (ClientError, JobsError, TimeoutError) as error:
        raise explained(error, target) from None
