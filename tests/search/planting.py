"""Faults planted into the node from outside: the proof that the search would find such ones."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from waybill.engine.amqp091.server import faults
from waybill.engine.amqp091.server.connection import Connection
from waybill.engine.delivery.drain import drain
from waybill.model.entry import Entry
from waybill.model.message_queue import MessageQueue
from waybill.model.runtime import Runtime
from waybill.node import node
from waybill.node.node import Node

LEAKED_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class Fault:
    """`owner.name` is replaced by `wrong`; then some case ends with a finding of one of `kinds`.

    `scale`: the amounts that it takes.
    """

    owner: Any
    name: str
    wrong: Callable[..., Any]
    kinds: tuple[str, ...]
    scale: int = 40


def count_again(queue: MessageQueue, message: Any, location: Any) -> Any:
    """Quadratic: for each new message all that wait are looked at, and more than once."""
    total = 0
    for number in range(1000 * queue.ready_count):
        total += number & 1
    return _publish(queue, message, location)


def leak(node: Node, engine: Any) -> None:
    """Something stays of each connection that opens."""
    _opened(node, engine)
    LEAKED.append(bytearray(LEAKED_BYTES))


def stay(node: Node, engine: Any) -> None:
    """A connection that is gone is not forgotten."""
    del node, engine


def fail_when_many(queue: MessageQueue) -> Any:
    """An exception that nobody expects, and only in some state."""
    if queue.ready_count > 0:
        raise KeyError(queue.name)
    return _purge(queue)


def leave_open(queue: MessageQueue, entry: Entry, reason: str) -> None:
    """An atomic section without its end."""
    queue.store.messages.atomic().__enter__()
    _kill(queue, entry, reason)


def forget_some(runtime: Runtime) -> None:
    """Two queues at once are too much for it: from then on it drains none."""
    if len(runtime.dirty) < 2 and runtime not in FORGETFUL:
        drain(runtime)
        return
    FORGETFUL.append(runtime)
    runtime.dirty.clear()


def fit_in_any(text: str) -> str:
    """A check that is missing: the text is as long as it is, and that is long."""
    return f"{text} ({text}; {text}; {text})"


def answer_wrongly(connection: Connection, fault: Any) -> None:
    """A reply code that the protocol does not have."""
    fault.code = 999
    _close_connection(connection, fault)


_publish = MessageQueue.publish
_opened = Node.opened
_purge = MessageQueue.begin_purge
_kill = MessageQueue.kill
_close_connection = Connection._close_connection

FORGETFUL: Final[list[Runtime]] = []
LEAKED: Final[list[bytearray]] = []

FAULTS: Final[dict[str, Fault]] = {
    "quadratic_loop": Fault(MessageQueue, "publish", count_again, ("cpu",), 200),
    "leak": Fault(Node, "opened", leak, ("memory",)),
    "connection_stays": Fault(Node, "lost", stay, ("AssertionError",)),
    "exception_in_a_state": Fault(MessageQueue, "begin_purge", fail_when_many, ("KeyError",)),
    "section_left_open": Fault(MessageQueue, "kill", leave_open, ("AssertionError", "Waited")),
    "queue_forgotten": Fault(node, "drain", forget_some, ("Waited", "AssertionError")),
    "check_missing": Fault(faults, "reply_text", fit_in_any, ("EncodeError",)),
    "unknown_reply_code": Fault(Connection, "_close_connection", answer_wrongly, ("WrongAnswer",)),
}


@contextmanager
def planted(name: str) -> Iterator[Fault]:
    fault = FAULTS[name]
    with patch.object(fault.owner, fault.name, fault.wrong):
        try:
            yield fault
        finally:
            LEAKED.clear()
            FORGETFUL.clear()
