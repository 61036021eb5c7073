"""Which function answers which method on an open channel."""

from collections.abc import Callable
from typing import Any, Final

from waybill.engine.amqp091.server import basic, topology
from waybill.engine.amqp091.server.channel import Channel
from waybill.wire.amqp091 import methods

HANDLERS: Final[dict[str, Callable[[Channel, Any], None]]] = {
    methods.ChannelFlow.NAME: basic.flow,
    methods.ExchangeDeclare.NAME: topology.exchange_declare,
    methods.ExchangeDelete.NAME: topology.exchange_delete,
    methods.ExchangeBind.NAME: topology.exchange_bind,
    methods.ExchangeUnbind.NAME: topology.exchange_unbind,
    methods.QueueDeclare.NAME: topology.queue_declare,
    methods.QueueBind.NAME: topology.queue_bind,
    methods.QueueUnbind.NAME: topology.queue_unbind,
    methods.QueuePurge.NAME: topology.queue_purge,
    methods.QueueDelete.NAME: topology.queue_delete,
    methods.BasicQos.NAME: basic.qos,
    methods.BasicConsume.NAME: basic.consume,
    methods.BasicCancel.NAME: basic.cancel,
    methods.BasicGet.NAME: basic.get,
    methods.BasicReject.NAME: basic.reject,
    methods.BasicNack.NAME: basic.nack,
    methods.BasicRecover.NAME: basic.recover,
    methods.BasicRecoverAsync.NAME: basic.recover_async,
    methods.ConfirmSelect.NAME: basic.confirm_select,
    methods.TxSelect.NAME: basic.tx_select,
    methods.TxCommit.NAME: basic.tx_commit,
    methods.TxRollback.NAME: basic.tx_rollback,
}
