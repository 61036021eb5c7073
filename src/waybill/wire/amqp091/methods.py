"""All methods of 0-9-1 and RabbitMQ's additions, and the way from a payload to one of them."""

from collections.abc import Callable
from typing import Final

from waybill.wire.amqp091.errors import UnknownMethod
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.method_arguments import Arguments
from waybill.wire.amqp091.methods_basic import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    BasicReturn,
)
from waybill.wire.amqp091.methods_channel import (
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
)
from waybill.wire.amqp091.methods_confirm import (
    ConfirmSelect,
    ConfirmSelectOk,
)
from waybill.wire.amqp091.methods_connection import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
)
from waybill.wire.amqp091.methods_exchange import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
)
from waybill.wire.amqp091.methods_queue import (
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)
from waybill.wire.amqp091.methods_tx import (
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from waybill.wire.amqp091.octets import Reader

METHODS: Final[tuple[type[Method], ...]] = (
    ConnectionStart,
    ConnectionStartOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionBlocked,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    ChannelOpen,
    ChannelOpenOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelClose,
    ChannelCloseOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueBind,
    QueueBindOk,
    QueuePurge,
    QueuePurgeOk,
    QueueDelete,
    QueueDeleteOk,
    QueueUnbind,
    QueueUnbindOk,
    BasicQos,
    BasicQosOk,
    BasicConsume,
    BasicConsumeOk,
    BasicCancel,
    BasicCancelOk,
    BasicPublish,
    BasicReturn,
    BasicDeliver,
    BasicGet,
    BasicGetOk,
    BasicGetEmpty,
    BasicAck,
    BasicReject,
    BasicRecoverAsync,
    BasicRecover,
    BasicRecoverOk,
    BasicNack,
    ConfirmSelect,
    ConfirmSelectOk,
    TxSelect,
    TxSelectOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
)
"""Every method, in the order of class and method ids."""

_CONSTRUCTORS: Final[dict[tuple[int, int], Callable[..., Method]]] = {
    (cls.CLASS_ID, cls.METHOD_ID): cls for cls in METHODS
}
_ARGUMENTS: Final[dict[tuple[int, int], Arguments]] = {(cls.CLASS_ID, cls.METHOD_ID): cls.ARGUMENTS for cls in METHODS}


def decode_method(payload: bytes) -> Method:
    """Decode the payload of a method frame, all of it. Raises UnknownMethod or another DecodeError."""
    reader = Reader(payload, 0, len(payload))
    class_id = reader.u16()
    method_id = reader.u16()
    constructor = _CONSTRUCTORS.get((class_id, method_id))
    if constructor is None:
        raise UnknownMethod(class_id, method_id)
    values = _ARGUMENTS[class_id, method_id].decode(reader)
    return constructor(*values)


__all__ = [
    "METHODS",
    "BasicAck",
    "BasicCancel",
    "BasicCancelOk",
    "BasicConsume",
    "BasicConsumeOk",
    "BasicDeliver",
    "BasicGet",
    "BasicGetEmpty",
    "BasicGetOk",
    "BasicNack",
    "BasicPublish",
    "BasicQos",
    "BasicQosOk",
    "BasicRecover",
    "BasicRecoverAsync",
    "BasicRecoverOk",
    "BasicReject",
    "BasicReturn",
    "ChannelClose",
    "ChannelCloseOk",
    "ChannelFlow",
    "ChannelFlowOk",
    "ChannelOpen",
    "ChannelOpenOk",
    "ConfirmSelect",
    "ConfirmSelectOk",
    "ConnectionBlocked",
    "ConnectionClose",
    "ConnectionCloseOk",
    "ConnectionOpen",
    "ConnectionOpenOk",
    "ConnectionSecure",
    "ConnectionSecureOk",
    "ConnectionStart",
    "ConnectionStartOk",
    "ConnectionTune",
    "ConnectionTuneOk",
    "ConnectionUnblocked",
    "ConnectionUpdateSecret",
    "ConnectionUpdateSecretOk",
    "ExchangeBind",
    "ExchangeBindOk",
    "ExchangeDeclare",
    "ExchangeDeclareOk",
    "ExchangeDelete",
    "ExchangeDeleteOk",
    "ExchangeUnbind",
    "ExchangeUnbindOk",
    "Method",
    "QueueBind",
    "QueueBindOk",
    "QueueDeclare",
    "QueueDeclareOk",
    "QueueDelete",
    "QueueDeleteOk",
    "QueuePurge",
    "QueuePurgeOk",
    "QueueUnbind",
    "QueueUnbindOk",
    "TxCommit",
    "TxCommitOk",
    "TxRollback",
    "TxRollbackOk",
    "TxSelect",
    "TxSelectOk",
    "decode_method",
]
