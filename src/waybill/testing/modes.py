"""Jobs without a broker, for unit tests: `inline` runs each at push, `fake` records it (ojs-testing section 5).

    with fake(shop.jobs) as jobs:
        shop.order("ada", "book")
        jobs.assert_enqueued("email.send", args=["ada", "your book is on its way"])
        jobs.drain()
    jobs.assert_completed("email.send")

Envelopes, arguments, middleware, resources and handlers are the real ones. There are no queues, workers, delays or
limits: see docs/how-to/test.md for the differences. `TestBroker` is a real broker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from waybill.ojs import Jobs
from waybill.testing.recorded_jobs import RecordedJobs


@contextlib.contextmanager
def fake(jobs: Jobs) -> Iterator[RecordedJobs]:
    """Record the jobs that are pushed in a `with` block, until `drain` runs them. Nothing is sent to a broker."""
    with _standing_in(jobs, RecordedJobs(jobs)) as recorded:
        yield recorded


@contextlib.contextmanager
def inline(jobs: Jobs, *, retries: bool = False) -> Iterator[RecordedJobs]:
    """Run each job that is pushed in a `with` block immediately; the push returns after its handler.

    The push raises the error of the handler. With `retries`, the job is retried instead, without delays, as its policy
    says; handle and assertions show the outcome. Scheduled jobs run immediately, too.
    """
    with _standing_in(jobs, RecordedJobs(jobs, runs=True, retries=retries)) as recorded:
        yield recorded


@contextlib.contextmanager
def _standing_in(jobs: Jobs, recorded: RecordedJobs) -> Iterator[RecordedJobs]:
    before, jobs.broker_substitute = jobs.broker_substitute, recorded
    try:
        yield recorded
    finally:
        jobs.broker_substitute = before
        recorded.close()
