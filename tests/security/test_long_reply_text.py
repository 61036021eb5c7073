"""Reply texts hold 255 octets. Names that peers choose are in them, and one character may take four octets."""

import pytest

from tests.engine.amqp091.peer import Bench, Channel
from waybill.engine.amqp091.server.faults import reply_text
from waybill.wire.amqp091.methods_connection import ConnectionClose, ConnectionStartOk
from waybill.wire.amqp091.methods_queue import QueueDeclare

NAMES = ("é" * 127, "\U0001f600" * 63, "a" + "é" * 127)
NO_TEXT = ("\udcff" * 255, "\udc80" * 200 + "é" * 20)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_of_wide_characters_is_refused_as_any_other(bench: Bench, bystander: Channel, name: str) -> None:
    channel = bench.channel()
    close = channel.refuses(QueueDeclare(name, passive=True), 404)
    assert close.reply_text.startswith("NOT_FOUND - no queue '")
    channel.peer.open_channel(2)


@pytest.mark.parametrize("name", NAMES + NO_TEXT, ids=range(len(NAMES + NO_TEXT)))
def test_text_is_cut_between_characters(name: str) -> None:
    octets = reply_text(name * 3).encode("utf-8", "surrogateescape")
    assert 252 <= len(octets) <= 255
    assert (name * 3).encode("utf-8", "surrogateescape").startswith(octets)


def test_a_long_mechanism_is_refused_with_a_reply(bench: Bench, bystander: Channel) -> None:
    peer = bench.plug()
    peer.start()
    capabilities: dict[str, object] = {"capabilities": {"authentication_failure_close": True}}
    peer.connection.send(ConnectionStartOk(capabilities, "x" * 255, b"", "en_US"))
    arrival = peer.connection.next()
    assert isinstance(arrival.method, ConnectionClose), arrival
    assert arrival.method.reply_code == 403
