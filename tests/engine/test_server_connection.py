"""What all server connections share: the table of their states, and the guard against errors nobody expected."""

from typing import Any

import pytest

from tests.engine.amqp091.peer import Cut, NodeBench
from tests.engine.amqp10.peer import Peer as Amqp10Peer
from waybill.engine.amqp091.server.dispatch import HANDLERS
from waybill.engine.connection_state import (
    CLOSED,
    CLOSING,
    ENDED,
    FAILED,
    HEADER,
    LEAVING,
    LOGGED_IN,
    OPEN,
    OPENED,
    OPENING,
    SASL,
    TRANSITIONS,
)
from waybill.model.operator_log import OperatorLog
from waybill.wire.amqp091.methods_basic import BasicQos
from waybill.wire.amqp091.methods_connection import ConnectionClose, ConnectionCloseOk
from waybill.wire.amqp091.reply_codes import INTERNAL_ERROR
from waybill.wire.amqp10.frames import AMQP_HEADER, frame
from waybill.wire.amqp10.performatives import Close, Open


class Faults(OperatorLog):
    """Keeps what is reported as a fault of the program."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def fault(self, event: str, detail: str, error: Exception) -> None:
        self.errors.append(error)


class BrokenNames(dict[str, Any]):
    """Virtual hosts that nobody can look up."""

    def get(self, key: str, default: object = None) -> object:
        raise RuntimeError(key)


@pytest.fixture
def bench() -> NodeBench:
    return NodeBench(Cut.WHOLE)


@pytest.fixture
def faults(bench: NodeBench) -> Faults:
    log = Faults()
    bench.node.runtime.operator_log = log
    return log


def test_every_state_but_the_last_can_end() -> None:
    assert set(TRANSITIONS) == {SASL, HEADER, OPENING, OPEN, CLOSING, LEAVING, CLOSED}
    assert {state for moves in TRANSITIONS.values() for state in moves.values()} <= set(TRANSITIONS)
    assert [state for state, moves in TRANSITIONS.items() if moves.get(ENDED) != CLOSED] == [CLOSED]
    assert TRANSITIONS[CLOSED] == {}


def test_nothing_fails_or_opens_twice() -> None:
    for state in (CLOSING, LEAVING, CLOSED):
        assert not {FAILED, OPENED, LOGGED_IN} & set(TRANSITIONS[state])


def test_an_unknown_error_closes_its_connection_only(
    bench: NodeBench, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_channel: object, _method: object) -> None:
        raise ZeroDivisionError("nobody expected this")

    other, channel = bench.channel(), bench.channel()
    other.declare("q")
    channel.declare("gone", exclusive=True)
    monkeypatch.setitem(HANDLERS, BasicQos.NAME, broken)
    channel.send(BasicQos(0, 1, False))
    close = channel.peer.connection.expect(ConnectionClose)
    assert close.reply_code == INTERNAL_ERROR
    assert [type(error) for error in faults.errors] == [ZeroDivisionError]
    assert "gone" not in bench.node.virtual_hosts["/"].queues
    channel.peer.connection.send(ConnectionCloseOk())
    assert channel.peer.wire.is_closed
    other.publish(b"1")
    assert other.take_all() == [b"1"]


@pytest.mark.plain_source
def test_an_unknown_error_while_a_connection_of_0_9_1_opens(bench: NodeBench, faults: Faults) -> None:
    bench.node.virtual_hosts = BrokenNames(bench.node.virtual_hosts)
    peer = bench.plug()
    with pytest.raises(AssertionError):
        peer.open("/", heartbeat=0, frame_max=131_072)
    assert [type(error) for error in faults.errors] == [RuntimeError]


@pytest.mark.plain_source
def test_an_unknown_error_while_a_connection_of_1_0_opens(bench: NodeBench, faults: Faults) -> None:
    bench.node.virtual_hosts = BrokenNames(bench.node.virtual_hosts)
    peer = Amqp10Peer(bench)
    peer.write(AMQP_HEADER + frame(0, Open("peer").encode()))
    peer.take_header(AMQP_HEADER)
    peer.expect(Open)
    close = peer.expect(Close)
    assert close.error is not None
    assert close.error.condition == "amqp:internal-error"
    assert [type(error) for error in faults.errors] == [RuntimeError]
