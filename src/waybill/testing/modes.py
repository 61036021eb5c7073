"""Jobs without a broker, for unit tests: `inline` runs each at push, `fake` records it (ojs-testing section 5).

    with fake(shop.jobs) as jobs:
        shop.order("ada", "book")
        jobs.assert_enqueued("email.send", args=["ada", "your book is on its way"])
        jobs.drain()
    jobs.assert_completed("email.send")

Envelopes, arguments, middleware, resources and handlers are the real ones. There is no queue, no worker, no time and no
limit: see docs/how-to/test.md for what differs. `TestBroker` is the real thing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from waybill.ojs import Jobs
from waybill.testing.recorded_jobs import RecordedJobs


@contextlib.contextmanager
def fake(jobs: Jobs) -> Iterator[RecordedJobs]:
    """Record the jobs that are pushed in a `with` block, until `drain` runs them; nothing goes to a broker."""
    with _standing_in(jobs, RecordedJobs(jobs)) as recorded:
        yield recorded


@contextlib.contextmanager
def inline(jobs: Jobs, *, retries: bool = False) -> Iterator[RecordedJobs]:
    """Run each job that is pushed in a `with` block at once; the push returns when its handler has.

    What a handler raises, the push raises. With `retries` the job is tried again instead, without a wait, as often as
    its policy says, and its end is in the handle and in the assertions. A job that is due later runs at once too.
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
