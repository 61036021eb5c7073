"""The log on standard error, as text or as JSON.

Records quote peers and jobs, which are untrusted: control characters are escaped, and a message stays on one line.
Tracebacks keep their lines.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final

import click

from waybill.cli.echo import escaped

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

LONG: Final = 10_000
"""Only for longer texts the jobs package is imported, which takes long."""

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class TextLogFormatter(logging.Formatter):
    """Formats a record in one line, with its traceback below; control characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return escaped(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging has it
        """Return the line without the traceback."""
        return _shortened(super().formatMessage(record)).replace("\n", "\\n")

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802 - as logging has it
        """Return a traceback of a limited length: a job chooses the text of its error."""
        return _shortened(super().formatException(ei))


def _shortened(text: str) -> str:
    if len(text) < LONG:
        return text
    from waybill.ojs.spec.log_text import shortened

    return shortened(text)


log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    envvar="WAYBILL_LOG_FORMAT",
    help="Format of log lines.",
)


def formatter_of(log_format: str, component: str, text_format: str = FORMAT) -> logging.Formatter:
    """Return the formatter for "text" or "json"; `component` is what `JsonLogFormatter` says."""
    if log_format != "json":
        return TextLogFormatter(text_format)
    from waybill.ojs.middleware.json_log import JsonLogFormatter

    return JsonLogFormatter(component)


def log_in(
    log_format: str, component: str, text_format: str = FORMAT, log_filter: logging.Filter | None = None
) -> None:
    """Log to standard error from INFO on, unless the program has configured logging already."""
    _log_with(formatter_of(log_format, component, text_format), log_filter)


def log_as_text(text_format: str) -> None:
    """Log the messages of a command that ends by itself."""
    _log_with(TextLogFormatter(text_format), None)


def _log_with(formatter: logging.Formatter, log_filter: logging.Filter | None) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    if log_filter is not None:
        handler.addFilter(log_filter)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    keep_migrations_only()


def keep_migrations_only() -> None:
    """Log of Alembic only which migrations run: each start of a coordinator would tell of its plugins, too."""
    logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)
    logging.getLogger("alembic.runtime.migration").addFilter(_is_migration)


def _is_migration(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO or record.getMessage().startswith("Running ")
