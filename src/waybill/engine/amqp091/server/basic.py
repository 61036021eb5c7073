"""The methods of classes basic, confirm, tx and channel that do not run once a message, on the server side."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp091.message_format import AMQP091, fitted, with_integer_header
from waybill.engine.amqp091.server.channel import Channel
from waybill.engine.amqp091.server.confirms import Confirms
from waybill.engine.amqp091.server.consumer import DELIVERY_COUNT, ChannelConsumer, short_text
from waybill.engine.amqp091.server.direct_reply import REPLY_TO, make_reply_queue
from waybill.engine.amqp091.server.faults import BASIC, channel_fault, connection_fault
from waybill.engine.amqp091.server.octet_window import OctetWindow, content_size
from waybill.engine.amqp091.server.topology import named_queue
from waybill.engine.conversion.convert import (
    Inconvertible,
    amqp091_content,
    conversion_units,
    report_undeliverable,
)
from waybill.model.binding import QUEUE
from waybill.model.entry import Entry
from waybill.model.errors import InvalidArgument, PreconditionFailed, ResourceRefused
from waybill.model.footprint import consumer_size
from waybill.model.queue import Queue
from waybill.model.runtime import BYTES_PER_UNIT
from waybill.model.stream_filter import stream_filter
from waybill.model.transaction import REJECT, RELEASE
from waybill.wire.amqp091.content import rewrite_channel
from waybill.wire.amqp091.frames import frame
from waybill.wire.amqp091.methods_basic import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
)
from waybill.wire.amqp091.methods_channel import ChannelFlow, ChannelFlowOk
from waybill.wire.amqp091.methods_confirm import ConfirmSelect, ConfirmSelectOk
from waybill.wire.amqp091.methods_tx import TxCommit, TxCommitOk, TxRollback, TxRollbackOk, TxSelect, TxSelectOk
from waybill.wire.amqp091.reply_codes import NOT_ALLOWED, NOT_IMPLEMENTED, PRECONDITION_FAILED, RESOURCE_ERROR

MAX_PRIORITY: Final = 2**31 - 1
MAX_TAG_GIVEN: Final = 2**63 - 1
# The maximum output for one read of pipelined basic.get.
ANSWERS_MAX_BYTES: Final = 64 << 20


def qos(channel: Channel, method: BasicQos) -> None:
    if method.global_:
        limit_channel(channel, method.prefetch_count, method.prefetch_size)
    else:
        channel.default_prefetch = method.prefetch_count
        channel.default_prefetch_octets = method.prefetch_size
    channel.send(BasicQosOk())


def limit_channel(channel: Channel, count: i64, octets: i64) -> None:
    """Set the prefetch limit of all consumers of the channel; 0: only the general limit of channels."""
    channel.prefetch = count
    if octets == 0:
        channel.window = None
    elif channel.window is not None:
        channel.window.limit = octets
    else:
        # A held message that is only on disk does not count.
        window = channel.window = OctetWindow(octets)
        channel.counts_octets = True
        channel.connection.host.runtime.work_left -= len(channel.unsettled) >> 4
        for entry in channel.unsettled.values():
            if entry.holder is not channel.polled:
                window.add(entry, content_size(entry.message))
    for consumer in channel.consumers.values():
        consumer.window_changed()
    channel.has_limit = count != 0 or octets != 0
    channel.set_flow(active=channel.is_flowing)


def consume(channel: Channel, method: BasicConsume) -> None:
    connection = channel.connection
    if method.queue == REPLY_TO:
        queue = make_reply_queue(channel, no_ack=method.no_ack)
    else:
        queue = named_queue(channel, method.queue)
        connection.check_permission("read", QUEUE, queue.name)
    tag = method.consumer_tag or connection.host.random_name("amq.ctag-")
    if tag in channel.consumers:
        raise connection_fault(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'", BASIC, method.METHOD_ID)
    if len(channel.consumers) >= connection.host.limits.consumers_per_channel_max:
        raise connection_fault(RESOURCE_ERROR, "too many consumers on this channel", BASIC, method.METHOD_ID)
    if not connection.held.can_attach(consumer_size(tag)):
        raise ResourceRefused(f"cannot add a consumer: {connection.held.no_room()}")
    connection.spare_output()
    is_stream = queue.is_append_only
    if is_stream:
        channel.has_streams = True
    if is_stream and channel.default_prefetch == 0 and channel.prefetch == 0:
        raise PreconditionFailed(f"consumer prefetch count is not set for stream '{queue.name}' in basic.qos")
    wanted = stream_filter(method.arguments) if is_stream else None
    consumer = ChannelConsumer(
        channel,
        queue,
        tag,
        method.no_ack,
        method.exclusive,
        _priority(method.arguments),
        channel.default_prefetch,
        channel.default_prefetch_octets,
        is_stream,
    )
    queue.subscribe(consumer, method.arguments.get("x-stream-offset"), wanted)
    channel.consumers[tag] = consumer
    connection.held.attach(consumer_size(tag))
    channel.consumer_timeout_s = max(channel.consumer_timeout_s, _timeout_s(method.arguments))
    if not method.no_wait:
        channel.send(BasicConsumeOk(tag))


def _priority(arguments: dict[str, object]) -> int:
    priority = arguments.get("x-priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
        raise InvalidArgument(f"invalid arg 'x-priority': {priority!r} is not a 32-bit integer")
    return priority


def _timeout_s(arguments: dict[str, object]) -> float:
    timeout_ms = arguments.get("x-consumer-timeout", 0)
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int) or timeout_ms < 0:
        raise InvalidArgument(f"invalid arg 'x-consumer-timeout': {timeout_ms!r} is not a number of milliseconds")
    return timeout_ms / 1000


def cancel(channel: Channel, method: BasicCancel) -> None:
    consumer = channel.consumers.pop(method.consumer_tag, None)
    if consumer is not None:
        consumer.is_cancelled = True
        channel.connection.held.detach(consumer_size(consumer.tag))
        consumer.queue.remove_consumer(consumer)
        if consumer.queue.name == channel.reply_queue_name:
            channel.reply_queue_name = ""
    if not method.no_wait:
        channel.send(BasicCancelOk(method.consumer_tag))


def get(channel: Channel, method: BasicGet) -> None:
    connection = channel.connection
    queue = named_queue(channel, method.queue)
    connection.check_permission("read", QUEUE, queue.name)
    if not method.no_ack and channel.unsettled_count >= connection.host.limits.unsettled_per_channel_max:
        raise connection_fault(RESOURCE_ERROR, "too many unsettled deliveries on this channel", BASIC, method.METHOD_ID)
    if len(connection.out) > ANSWERS_MAX_BYTES:
        raise connection_fault(RESOURCE_ERROR, "too many messages asked for at once", BASIC, method.METHOD_ID)
    found = _take_convertible(channel, queue, method)
    queue.touch()
    if found is None:
        connection.host.runtime.counters.polled_empty += 1
        channel.send(BasicGetEmpty())
        return
    entry, content = found
    connection.host.runtime.work_left -= len(content) // BYTES_PER_UNIT
    if queue.awaits_commit(entry):
        connection.hold()
    channel.delivery_tag += 1
    tag = channel.delivery_tag
    address = entry.message.address
    reply = BasicGetOk(
        int(tag), entry.redelivered, address.exchange, short_text(address.routing_key), queue.message_count
    )
    number = int(channel.number)
    if entry.delivery_count > 0 and queue.counts_deliveries:
        content = with_integer_header(content, connection.facts, DELIVERY_COUNT, entry.delivery_count)
    content = rewrite_channel(content, number)
    if len(content) > connection.frame_max:
        content = fitted(content, connection.frame_max)
    connection.send(frame(1, number, reply.encode()) + content)
    if not method.no_ack:
        entry.holder = channel.polled
        channel.polled.unsettled_count += 1
        channel.unsettled[tag] = entry
        channel.unsettled_count += 1
        if connection.host.runtime.pages_out():
            entry.queue.page_out([entry], channel.polled)


def reject(channel: Channel, method: BasicReject) -> None:
    outcome = RELEASE if method.requeue else REJECT
    channel.settle(_given_tag(channel, method), outcome, multiple=False, method_id=method.METHOD_ID)


def nack(channel: Channel, method: BasicNack) -> None:
    outcome = RELEASE if method.requeue else REJECT
    channel.settle(_given_tag(channel, method), outcome, multiple=method.multiple, method_id=method.METHOD_ID)


def _take_convertible(channel: Channel, queue: Queue, method: BasicGet) -> tuple[Entry, bytes] | None:
    """The first message that can be converted to this protocol, and its content."""
    while (entry := queue.take(method.no_ack)) is not None:
        if entry.message.format is not AMQP091:
            channel.connection.host.runtime.work_left -= conversion_units(entry.message, AMQP091)
        try:
            return entry, amqp091_content(entry.message)
        except Inconvertible as error:
            report_undeliverable(channel.connection.host.runtime.operator_log, queue.name, error)
            queue.undeliverable(entry, is_settled=method.no_ack)
    return None


def _given_tag(channel: Channel, method: BasicReject | BasicNack) -> int:
    """A delivery tag, limited to valid ones: unsigned 64-bit numbers do not fit signed integers."""
    if method.delivery_tag > MAX_TAG_GIVEN:
        raise channel.unknown_tag(method.delivery_tag, method.METHOD_ID)
    return method.delivery_tag


def recover(channel: Channel, method: BasicRecover) -> None:
    _check_requeue(requeue=method.requeue, method_id=method.METHOD_ID)
    channel.recover(BasicRecoverOk())


def recover_async(channel: Channel, method: BasicRecoverAsync) -> None:
    _check_requeue(requeue=method.requeue, method_id=method.METHOD_ID)
    channel.recover(None)


def _check_requeue(*, requeue: bool, method_id: int) -> None:
    if not requeue:
        raise connection_fault(NOT_IMPLEMENTED, "recover without requeue", BASIC, method_id)


def flow(channel: Channel, method: ChannelFlow) -> None:
    channel.set_flow(active=method.active)
    channel.send(ChannelFlowOk(method.active))


def confirm_select(channel: Channel, method: ConfirmSelect) -> None:
    if channel.transaction is not None:
        raise channel_fault(
            PRECONDITION_FAILED, "cannot switch from tx to confirm mode", method.CLASS_ID, method.METHOD_ID
        )
    if channel.confirms is None:
        channel.confirms = Confirms(channel)
    if not method.nowait:
        channel.send(ConfirmSelectOk())


def tx_select(channel: Channel, method: TxSelect) -> None:
    if channel.confirms is not None:
        raise channel_fault(
            PRECONDITION_FAILED, "cannot switch from confirm to tx mode", method.CLASS_ID, method.METHOD_ID
        )
    if channel.transaction is None:
        channel.begin_transaction()
    channel.send(TxSelectOk())


def tx_commit(channel: Channel, method: TxCommit) -> None:
    _check_transactional(channel, method.CLASS_ID, method.METHOD_ID)
    accepted = channel.commit()
    channel.connection.hold()
    if not accepted:
        raise channel_fault(
            PRECONDITION_FAILED, "a full queue refused a message of the transaction", method.CLASS_ID, method.METHOD_ID
        )
    channel.send(TxCommitOk())


def tx_rollback(channel: Channel, method: TxRollback) -> None:
    _check_transactional(channel, method.CLASS_ID, method.METHOD_ID)
    channel.rollback()
    channel.send(TxRollbackOk())


def _check_transactional(channel: Channel, class_id: int, method_id: int) -> None:
    if channel.transaction is None:
        raise channel_fault(PRECONDITION_FAILED, "channel is not transactional", class_id, method_id)
