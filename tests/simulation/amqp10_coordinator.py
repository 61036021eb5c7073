"""What a 1.0 client says to the coordinator. One transaction is open at any time, and all that it does is in it."""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.violation import Violation
from waybill.wire.amqp10.messaging import Source
from waybill.wire.amqp10.performatives import ROLE_RECEIVER, ROLE_SENDER, Attach, Disposition, Flow, Transfer
from waybill.wire.amqp10.sections import encode_amqp_value
from waybill.wire.amqp10.transactions import Coordinator, Declare, Declared, Discharge

if TYPE_CHECKING:
    from tests.simulation.amqp10_client import Client

HANDLE: Final = 999

Asking = Generator[Callable[[object], bool], Any, Disposition]


def attach_coordinator(client: "Client") -> Generator[Callable[[object], bool], Any, None]:
    """Attach the link, and declare the first transaction."""
    client.send(
        Attach(
            f"{client.name}.coordinator",
            HANDLE,
            ROLE_SENDER,
            source=Source(),
            target=Coordinator(),
            initial_delivery_count=0,
        )
    )
    yield lambda answer: isinstance(answer, Flow) and answer.handle == HANDLE
    yield from declare(client)


def declare(client: "Client") -> Generator[Callable[[object], bool], Any, None]:
    answer = yield from request(client, Declare())
    if not isinstance(answer.state, Declared):
        raise Violation("a correct client gets no error", f"{client.name}: {answer}")
    client.transaction_id = answer.state.txn_id
    client.transaction = client.ledger.begin()


def request(client: "Client", body: Declare | Discharge) -> Asking:
    """Ask the coordinator, which answers as soon as all that went before is done. It gives credit at any time."""
    number = client.next_delivery_id
    client.next_delivery_id += 1
    client.own_requests.add(number)
    client.send_transfer(Transfer(HANDLE, number, b"%d" % number, 0), encode_amqp_value(body))
    answer: Disposition = (
        yield lambda answer: isinstance(answer, Disposition) and answer.role == ROLE_RECEIVER and answer.first == number
    )
    return answer
