"""The error that ends a move. Nothing is lost: fix the cause and run the move again."""

from waybill.ojs.errors import JobsError


class MoveFailed(JobsError):
    """A move cannot continue; the text names the cause and the queue."""
