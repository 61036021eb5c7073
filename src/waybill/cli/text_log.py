"""The log as text on standard error.

Records quote peers and jobs, which are untrusted: control characters are escaped, and a message stays on one line.
Tracebacks keep their lines.
"""

from __future__ import annotations

import logging
from typing import Final

from waybill.cli.echo import escaped

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextLogFormatter(logging.Formatter):
    """Formats a record in one line, with its traceback below; control characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return escaped(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging has it
        """Return the line without the traceback."""
        return super().formatMessage(record).replace("\n", "\\n")


def log_as_text(text_format: str = FORMAT, log_filter: logging.Filter | None = None) -> None:
    """Log to standard error from INFO on, unless the program has configured logging already."""
    handler = logging.StreamHandler()
    handler.setFormatter(TextLogFormatter(text_format))
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
