"""What an error of a task says without the stack trace of Java around it."""


def own_error(text: str) -> str | None:
    """The message of this package's Python error in the text of an error of Spark; None if there is none."""
    for line in reversed(text.splitlines()):
        name, separator, message = line.strip().partition(": ")
        if separator and name.startswith("waybill.pipeline."):
            return message
    return None


def first_line(text: str) -> str:
    """What Spark says first."""
    return text.strip().splitlines()[0] if text.strip() else "the query failed"
