"""Runs a request to the broker, and explains every failure with its cause and a hint."""

from __future__ import annotations

import errno
import logging
import ssl
from collections.abc import Coroutine, Mapping
from typing import IO, Any, Final, TypeVar

import click

from waybill.cli.echo import echo
from waybill.cli.guarded_group import INTERRUPTED
from waybill.cli.target import Target
from waybill.client import (
    AccessRefused,
    AuthenticationFailed,
    ClientError,
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    InvalidURI,
    MessageReturned,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    QueueFull,
    ResourceLocked,
)
from waybill.ojs import ControlFailed, DeclarationRefused, InvalidJob, JobsError, PushFailed, TopologyConflict
from waybill.transport.loop import run

T = TypeVar("T")
LEVELS: Final = {"waybill": logging.CRITICAL, "waybill.client.connection": logging.WARNING}
"""What is logged of the connection tells what a command waits for. The texts below explain the rest to users."""


class Failed(click.ClickException):
    """A cause and a hint. With `--json` both go to standard error as JSON."""

    def __init__(self, cause: str, hint: str = "") -> None:
        super().__init__(cause)
        self.hint = hint

    def show(self, file: IO[Any] | None = None) -> None:
        """Print both."""
        super().show(file)
        if self.hint:
            echo(f"Hint: {self.hint}", file=file, err=file is None)


def not_started(error: OSError) -> Failed:
    """Return why a server has not started, such as an address that is in use: the error names it."""
    hint = "stop what listens there, or choose another port" if error.errno == errno.EADDRINUSE else ""
    return Failed(f"cannot start: {error if error.filename else error.strerror or error}", hint)


def ask(target: Target, question: Coroutine[Any, Any, T]) -> T:
    """Run a request to the broker on a new loop. Raises Failed or click.UsageError; Ctrl-C exits with 130."""
    levels = {name: logging.getLogger(name).level for name in LEVELS}
    _set_levels(LEVELS)
    try:
        return run(question)
    except InvalidJob as error:
        raise click.UsageError(str(error)) from None
    except InvalidURI as error:
        raise target.refused(error) from None
    except (ClientError, JobsError, TimeoutError) as error:
        raise explained(error, target) from None
    except KeyboardInterrupt:
        echo("interrupted", err=True)
        raise SystemExit(INTERRUPTED) from None
    finally:
        _set_levels(levels)


def _set_levels(levels: Mapping[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def explained(error: Exception, target: Target) -> Failed:
    """The error's own text, and what users can do about it."""
    return Failed(str(error) or "no reply in time", _hint(error, target))


def _hint(error: Exception, target: Target) -> str:  # noqa: PLR0911 - one line for each error
    settings = target.address.settings
    user, virtual_host = settings.user, settings.virtual_host
    match error:
        case AuthenticationFailed():
            return (
                f"check user {user!r} and the password in the URI; guest may log in from the broker's own machine only"
            )
        case ConnectFailed():
            return _connect_hint(error)
        case NotAllowed():
            text = f"create the virtual host {virtual_host!r} and give user {user!r} access (see `waybill doctor`)"
            slash = "" if virtual_host.startswith("/") else f"; if '/{virtual_host}' is meant: .../%2F{virtual_host}"
            return text + slash
        case AccessRefused():
            return (
                f"give user {user!r} configure, write and read permissions on {virtual_host!r}; `waybill doctor` says"
                " which are missing"
            )
        case NotFound():
            return "declare it: `waybill queue declare QUEUE`; `waybill topology check QUEUE` shows all that is missing"
        case DeclarationRefused():
            return "delete queues, raise the limit, or give the broker more memory or disk"
        case PreconditionFailed() | TopologyConflict():
            return "`waybill topology check` shows the difference, `waybill topology migrate` moves the jobs"
        case ResourceLocked():
            return "another connection uses it exclusively: stop that program first"
        case ControlFailed():
            return "start a coordinator of the queue, `waybill coordinator QUEUE`, or name another queue with --queue"
        case QueueFull() | PushFailed(code="QUEUE_FULL"):
            return "start more workers, or push again later: the queue is full"
        case MessageReturned() | PushFailed(code="NOT_FOUND"):
            return "declare the queue: `waybill queue declare QUEUE`"
        case ConnectionLost() | ConnectionClosed() | PushFailed() | TimeoutError():
            return "run `waybill doctor` to check the broker, then try again"
    return "`waybill doctor` looks for causes"


def _connect_hint(error: ConnectFailed) -> str:
    match error.__cause__:
        case ssl.SSLCertVerificationError():
            return "name the authority of the broker's certificate at the end of the URI: ?cacertfile=ca.pem"
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER"):
            return "is this the broker's port for TLS? Without TLS, the URI begins with amqp://"
    return (
        "check that a broker listens there (`waybill broker` starts one; at a port for TLS, the URI begins with"
        " amqps://), or name another with --uri, --context or WAYBILL_URL"
    )
