"""Extracts the message of a task's error, without Java's stack trace."""

import re
from typing import Final

from waybill.pipeline.parquet_files import REPAIRED

# Spark's errors have a name in brackets; causes come after, the first of Java's errors before.
_NAMED: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .*")
_JAVA: Final = re.compile(r"(?:[a-z0-9]+\.)+(?:[A-Za-z$]*(?:Exception|Error)): .*")
_UNREADABLE: Final = ("FAILED_READ_FILE", "CANNOT_READ_FILE", "is not a Parquet file", "PATH_NOT_FOUND")
_NO_ROOM: Final = ("No space left on device", "File too large", "Disk quota exceeded")


def own_error(text: str) -> str | None:
    """The message of this package's Python error in the text of a Spark error; None if there is none."""
    for line in reversed(text.splitlines()):
        name, separator, message = line.strip().partition(": ")
        if separator and name.startswith("waybill.pipeline."):
            return message
    return None


def spark_error(text: str) -> str:
    """The text of a Spark error in one line, with the way out if it is known."""
    own = own_error(text)
    if own is not None:
        return own
    cause = next((found for found in _NO_ROOM if found in text), None)
    if cause is not None:
        return f"{cause}: free disk space, and start again, which continues where this ended"
    named = _NAMED.search(text) or _JAVA.search(text)
    line = first_line(text) if named is None else named[0].strip()
    return f"{line}; {REPAIRED}" if any(found in line for found in _UNREADABLE) else line


def first_line(text: str) -> str:
    """The first line of a Spark error."""
    return text.strip().splitlines()[0] if text.strip() else "the query failed"
