"""Fixtures for pytest.

A project asks for them in its conftest.py:

pytest_plugins = ["waybill.testing.pytest_plugin"]
"""

from collections.abc import Iterator

import pytest

from waybill.testing.broker import TestBroker


@pytest.fixture
def waybill_broker() -> Iterator[TestBroker]:
    """A real broker with nothing in it, for this test alone; see `waybill.testing.TestBroker`."""
    with TestBroker() as broker:
        yield broker
