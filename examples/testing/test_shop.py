"""Tests of a program against a real broker. In a project, `pytest_plugins` stands in the top conftest.py."""

import asyncio
from collections.abc import Iterator

import pytest

from examples.testing import shop
from waybill import Worker
from waybill.testing import TestBroker, until

pytest_plugins = ["waybill.testing.pytest_plugin"]


@pytest.fixture
def broker(waybill_broker: TestBroker) -> Iterator[TestBroker]:
    shop.outbox.clear()
    with waybill_broker.serving(shop.jobs):
        yield waybill_broker


def test_an_order_sends_a_mail(broker: TestBroker) -> None:
    async def scenario() -> None:
        async with shop.jobs:
            await shop.order("ada", "book")

    asyncio.run(scenario())
    broker.assert_enqueued("email.send", args=["ada", "your book is on its way"], queue="email", count=1)


def test_a_mail_is_tried_again_when_its_time_has_come(broker: TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(shop, "mail_server_works", False)
        async with shop.jobs, Worker(shop.jobs):
            await shop.order("ada", "book")
            await until(lambda: len(broker.jobs("email", state="retryable")) == 1)
            monkeypatch.setattr(shop, "mail_server_works", True)
            broker.advance(60)  # the retry is due now, not in a second or two
            await until(lambda: shop.outbox == ["ada: your book is on its way"])

    asyncio.run(scenario())


def test_orders_outlive_a_crash_of_the_broker(broker: TestBroker) -> None:
    async def scenario() -> None:
        async with shop.jobs:
            await shop.order("ada", "book")
        broker.crash(lose_power=True)
        async with Worker(shop.jobs):
            await until(lambda: len(shop.outbox) == 1)

    asyncio.run(scenario())


def test_a_job_may_come_twice(broker: TestBroker) -> None:
    async def scenario() -> None:
        async with shop.jobs:
            await shop.order("ada", "book")
        assert broker.duplicate("email") == 1
        async with Worker(shop.jobs):
            await until(lambda: len(shop.outbox) == 2)  # so the mail had better be idempotent

    asyncio.run(scenario())
