"""The one kind of job of the demo, as producer and workers both know it."""

from datetime import timedelta
from pathlib import Path
from typing import Final

from examples.demo.analysis import NotPython, Result, analyse
from waybill import Jobs, Retry
from waybill.client import ReconnectPolicy
from waybill.ojs import DeadLetterJob, Handler

QUEUE: Final = "files"

# A broker on the same machine is back within a second: there is no reason to leave it alone for long.
RECONNECT: Final = ReconnectPolicy(first_delay_s=0.1, factor=1.5, max_delay_s=1.0)

# The bytes of a binary file will not change. A syntax error may come from a file that is just being written, an OSError
# from a network drive: those are worth a second and a third look, after one second and after two.
RETRY: Final = Retry(
    max_attempts=3,
    initial_interval=timedelta(seconds=1),
    jitter=False,
    non_retryable_errors=["NotText", "UnicodeDecodeError"],
    on_exhaustion="dead_letter",
)


# Those of the broker's retry queues that this policy makes use of.
RETRY_DELAYS_MS: Final = (1000, 2000)


def make_jobs(uri: str) -> tuple[Jobs, Handler[[str], Result]]:
    """Return the jobs of this program for the broker at `uri`, and the handler that parses a file."""
    jobs = Jobs(uri, reconnect=RECONNECT)

    @jobs.handler("file.parse", queue=QUEUE, retry=RETRY, timeout=30)
    def parse(path: str) -> Result:
        try:
            return analyse(Path(path))
        except NotPython as error:
            # The handler knows better than any policy that nobody need look again.
            raise DeadLetterJob(str(error), type="NotPython") from error

    return jobs, parse
