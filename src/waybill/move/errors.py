"""What ends a move. Nothing is lost by it: run the move again when the cause is mended."""

from waybill.ojs.errors import JobsError


class MoveFailed(JobsError):
    """A move cannot continue; the text names the cause and the queue."""
