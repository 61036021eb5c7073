"""Messages and states between a transaction controller and a coordinator (1.0, 4.5)."""

from dataclasses import dataclass
from typing import Final

from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.composite import Composite, composite
from waybill.wire.amqp10.types import Described

LOCAL_TRANSACTIONS: Final = "amqp:local-transactions"
DISTRIBUTED_TRANSACTIONS: Final = "amqp:distributed-transactions"
PROMOTABLE_TRANSACTIONS: Final = "amqp:promotable-transactions"
MULTIPLE_TRANSACTIONS_A_SESSION: Final = "amqp:multi-txns-per-ssn"
MULTIPLE_SESSIONS_A_TRANSACTION: Final = "amqp:multi-ssns-per-txn"

TXN_ID: Final = "txn-id"
"""The flow property that names the transaction of acquired messages (4.4.3)."""


@composite(descriptors.COORDINATOR, "capabilities:symbol[]")
@dataclass(frozen=True)
class Coordinator(Composite):
    """The target of a link that carries `Declare` and `Discharge`."""

    capabilities: tuple[str, ...] = ()


@composite(descriptors.DECLARE, "global_id:any")
@dataclass(frozen=True)
class Declare(Composite):
    """The body of a message that begins a transaction."""

    global_id: object | None = None


@composite(descriptors.DISCHARGE, "txn_id:binary! fail:boolean")
@dataclass(frozen=True)
class Discharge(Composite):
    """The body of a message that ends a transaction: a rollback if `fail`, otherwise a commit."""

    txn_id: bytes
    fail: bool = False


@composite(descriptors.DECLARED, "txn_id:binary!")
@dataclass(frozen=True)
class Declared(Composite):
    """The outcome of `Declare`."""

    txn_id: bytes


@composite(descriptors.TRANSACTIONAL_STATE, "txn_id:binary! outcome:outcome")
@dataclass(frozen=True)
class TransactionalState(Composite):
    """The state of a delivery in a transaction. `outcome`: what the commit applies."""

    txn_id: bytes
    outcome: Composite | Described | None = None
