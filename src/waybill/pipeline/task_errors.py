"""Extracts the message of a task's error, without Java's stack trace."""


def own_error(text: str) -> str | None:
    """The message of this package's Python error in the text of a Spark error; None if there is none."""
    for line in reversed(text.splitlines()):
        name, separator, message = line.strip().partition(": ")
        if separator and name.startswith("waybill.pipeline."):
            return message
    return None


def first_line(text: str) -> str:
    """The first line of a Spark error."""
    return text.strip().splitlines()[0] if text.strip() else "the query failed"
