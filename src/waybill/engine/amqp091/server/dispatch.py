"""Which function answers which method on an open channel."""

from collections.abc import Callable
from typing import Any, Final

from waybill.engine.amqp091.server import basic, topology
from waybill.engine.amqp091.server.channel import Channel
from waybill.wire.amqp091 import (
    methods_basic,
    methods_channel,
    methods_confirm,
    methods_exchange,
    methods_queue,
    methods_tx,
)

HANDLERS: Final[dict[str, Callable[[Channel, Any], None]]] = {
    methods_channel.ChannelFlow.NAME: basic.flow,
    methods_exchange.ExchangeDeclare.NAME: topology.exchange_declare,
    methods_exchange.ExchangeDelete.NAME: topology.exchange_delete,
    methods_exchange.ExchangeBind.NAME: topology.exchange_bind,
    methods_exchange.ExchangeUnbind.NAME: topology.exchange_unbind,
    methods_queue.QueueDeclare.NAME: topology.queue_declare,
    methods_queue.QueueBind.NAME: topology.queue_bind,
    methods_queue.QueueUnbind.NAME: topology.queue_unbind,
    methods_queue.QueuePurge.NAME: topology.queue_purge,
    methods_queue.QueueDelete.NAME: topology.queue_delete,
    methods_basic.BasicQos.NAME: basic.qos,
    methods_basic.BasicConsume.NAME: basic.consume,
    methods_basic.BasicCancel.NAME: basic.cancel,
    methods_basic.BasicGet.NAME: basic.get,
    methods_basic.BasicReject.NAME: basic.reject,
    methods_basic.BasicNack.NAME: basic.nack,
    methods_basic.BasicRecover.NAME: basic.recover,
    methods_basic.BasicRecoverAsync.NAME: basic.recover_async,
    methods_confirm.ConfirmSelect.NAME: basic.confirm_select,
    methods_tx.TxSelect.NAME: basic.tx_select,
    methods_tx.TxCommit.NAME: basic.tx_commit,
    methods_tx.TxRollback.NAME: basic.tx_rollback,
}
