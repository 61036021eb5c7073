"""Fixtures for pytest.

Enable them in conftest.py:

pytest_plugins = ["waybill.testing.pytest_plugin"]
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from waybill.ojs import Jobs
from waybill.testing.broker import TestBroker
from waybill.testing.modes import fake, inline
from waybill.testing.recorded_jobs import RecordedJobs


@pytest.fixture
def waybill_broker() -> Iterator[TestBroker]:
    """An empty real broker for one test; see `waybill.testing.TestBroker`."""
    with TestBroker() as broker:
        yield broker


@pytest.fixture
def waybill_fake() -> Iterator[Callable[[Jobs], RecordedJobs]]:
    """Call it with a `Jobs` object: jobs pushed in this test are recorded; see `waybill.testing.fake`."""
    with ExitStack() as stack:
        yield lambda jobs: stack.enter_context(fake(jobs))


@pytest.fixture
def waybill_inline() -> Iterator[Callable[[Jobs], RecordedJobs]]:
    """Call it with a `Jobs` object: jobs pushed in this test run immediately; see `waybill.testing.inline`."""
    with ExitStack() as stack:
        yield lambda jobs: stack.enter_context(inline(jobs))
