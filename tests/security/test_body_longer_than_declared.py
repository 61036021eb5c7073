"""Body frames with more octets than the content header announced."""

import pytest

from tests.engine.amqp091.peer import Bench, Channel
from tests.security.attack import header, publish, table
from waybill.wire.amqp091.frames import FRAME_BODY, frame


@pytest.mark.parametrize(("declared", "sent"), [(1, [2]), (10, [5, 6]), (3, [70_000]), (100_000, [70_000, 70_000])])
def test_more_than_was_declared(bench: Bench, bystander: Channel, declared: int, sent: list[int]) -> None:
    channel = bench.channel()
    channel.declare("q")
    bodies = b"".join(frame(FRAME_BODY, 1, bytes(size)) for size in sent)
    channel.peer.write(publish("", "q") + header(declared, table()) + bodies)
    channel.peer.expect_refused(505)


def test_a_body_where_none_was_declared(bench: Bench, bystander: Channel) -> None:
    channel = bench.channel()
    channel.declare("q")
    channel.peer.write(publish("", "q") + header(0, table()) + frame(FRAME_BODY, 1, b"more"))
    channel.peer.expect_refused(505)


def test_more_than_a_message_may_have_is_refused_before_it_comes(bench: Bench, bystander: Channel) -> None:
    channel = bench.channel()
    channel.declare("q")
    channel.peer.write(publish("", "q") + header(1 << 62, table()))
    channel.expect_refused(406)
