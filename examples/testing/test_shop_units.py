"""Unit tests of a program: its jobs are kept, or run at once."""

import asyncio

import pytest

from examples.testing import shop
from waybill.testing import fake, inline


def test_an_order_asks_for_a_mail() -> None:
    with fake(shop.jobs) as pushed:
        asyncio.run(shop.order("ada", "book"))
    pushed.assert_enqueued("email.send", args=["ada", "your book is on its way"], queue="email", count=1)
    pushed.refute_performed("email.send")


def test_a_mail_is_tried_again() -> None:
    shop.outbox.clear()
    with fake(shop.jobs) as pushed:
        pushed.fail_next("email.send", ConnectionError("the mail server does not answer"))
        asyncio.run(shop.order("ada", "book"))
        assert pushed.drain() == 1  # runs what waits, and tries it again at once
    assert pushed.assert_completed("email.send")[0].attempt == 2
    assert shop.outbox == ["ada: your book is on its way"]


def test_a_mail_is_sent_at_once() -> None:
    shop.outbox.clear()
    with inline(shop.jobs) as done:
        shop.send_email.push_sync("bob", "hello")
        assert shop.outbox == ["bob: hello"]
        done.fail_next("email.send", ConnectionError("the mail server does not answer"))
        with pytest.raises(ConnectionError):
            shop.send_email.push_sync("bob", "hello again")
