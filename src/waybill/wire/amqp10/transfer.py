"""Transfer frames (1.0, 2.7.5) on the hot path, read and written without a `Transfer` object.

00 53 14 | C0 size count | handle | delivery-id | delivery-tag | message-format | settled | more | ... | payload
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.wire.amqp10 import codes
from waybill.wire.amqp10.descriptors import TRANSFER, read_descriptor, read_list
from waybill.wire.amqp10.encode import write_binary
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.frames import close_frame, write_frame_head
from waybill.wire.amqp10.scan import (
    ABSENT,
    NO_STATE,
    binary_at,
    boolean_at,
    close_list,
    open_list,
    put_boolean,
    put_flag,
    put_uint,
    state_at,
    ubyte_at,
    uint_at,
)

FIELD_COUNT: Final = 11


class TransferFacts:
    """The fields of a transfer. One object is reused for all of them.

    `settled`, `delivery_id`, `message_format` and `rcv_settle_mode` are -1 if absent, `settled` is 0 or 1 otherwise.
    The delivery-tag is `data[tag:tag_end]`, absent if `tag` is -1. `state` is the code of the state's descriptor, 0
    without a state, -1 for one that the specification does not define. The state is `data[state_start:state_end]`. The
    payload starts at `payload`.
    """

    def __init__(self) -> None:
        self.handle: i64 = 0
        self.delivery_id: i64 = ABSENT
        self.tag: i64 = ABSENT
        self.tag_end: i64 = ABSENT
        self.message_format: i64 = ABSENT
        self.settled: i64 = ABSENT
        self.more: bool = False
        self.rcv_settle_mode: i64 = ABSENT
        self.state: i64 = NO_STATE
        self.state_start: i64 = 0
        self.state_end: i64 = 0
        self.resume: bool = False
        self.aborted: bool = False
        self.batchable: bool = False
        self.payload: i64 = 0

    def clear(self) -> None:
        """Reset all fields but the handle."""
        self.delivery_id = ABSENT
        self.tag = ABSENT
        self.tag_end = ABSENT
        self.message_format = ABSENT
        self.settled = ABSENT
        self.more = False
        self.rcv_settle_mode = ABSENT
        self.state = NO_STATE
        self.state_start = 0
        self.state_end = 0
        self.resume = False
        self.aborted = False
        self.batchable = False


def scan_transfer(data: bytes, offset: i64, end: i64, facts: TransferFacts) -> None:
    """Fill `facts` from the transfer at `offset`. Raises DecodeError, with `facts` undefined."""
    code, o = read_descriptor(data, offset, end)
    if code != TRANSFER:
        raise DecodeError(f"a transfer is needed, not {code:#x}")
    count, o, stop = read_list(data, o, end)
    if count > FIELD_COUNT:
        raise DecodeError(f"{count} values for the {FIELD_COUNT} fields of a transfer")
    facts.clear()
    facts.payload = stop
    facts.handle, o = uint_at(data, o, stop)
    if facts.handle < 0:
        raise DecodeError("a transfer without a handle")
    if count > 1:
        facts.delivery_id, o = uint_at(data, o, stop)
    if count > 2:
        facts.tag, o = binary_at(data, o, stop)
        facts.tag_end = o
    if count > 3:
        facts.message_format, o = uint_at(data, o, stop)
    if count > 4:
        facts.settled, o = boolean_at(data, o, stop)
    if count > 5:
        more, o = boolean_at(data, o, stop)
        facts.more = more > 0
        if count > 6:
            o = _scan_rest(data, o, stop, count, facts)
    if o != stop:
        raise DecodeError(f"{stop - o} octets after the fields of a transfer")


def _scan_rest(data: bytes, o: i64, stop: i64, count: i64, facts: TransferFacts) -> i64:
    facts.rcv_settle_mode, o = ubyte_at(data, o, stop)
    if count > 7:
        facts.state_start = o
        facts.state, o = state_at(data, o, stop)
        facts.state_end = o
    if count > 8:
        resume, o = boolean_at(data, o, stop)
        facts.resume = resume > 0
    if count > 9:
        aborted, o = boolean_at(data, o, stop)
        facts.aborted = aborted > 0
    if count > 10:
        batchable, o = boolean_at(data, o, stop)
        facts.batchable = batchable > 0
    return o


def write_transfer(
    out: BytesWriter, channel: i64, facts: TransferFacts, tag: bytes | None, state: bytes, payload_size: i64
) -> None:
    """Write a transfer frame up to its payload. The caller writes `payload_size` octets of payload next.

    `facts` gives the numbers and flags, `tag` the delivery-tag (None: absent), `state` an encoded delivery state or
    nothing. All numbers must fit their fields; this is not checked.
    """
    start = write_frame_head(out, channel)
    room: i64 = len(state)
    if tag is not None:
        room += len(tag)
    fields = open_list(out, TRANSFER, room)
    count = _last_field(facts, tag, state)
    put_uint(out, facts.handle)
    if count > 1:
        _put_optional(out, facts.delivery_id)
    if count > 2:
        if tag is None:
            out.append(codes.NULL)
        else:
            write_binary(out, tag)
    if count > 3:
        _put_optional(out, facts.message_format)
    if count > 4:
        put_boolean(out, facts.settled)
    if count > 5:
        put_flag(out, value=facts.more)
    if count > 6:
        _write_rest(out, count, facts, state)
    close_list(out, fields, count, room)
    close_frame(out, start, payload_size)


def _write_rest(out: BytesWriter, count: i64, facts: TransferFacts, state: bytes) -> None:
    if facts.rcv_settle_mode >= 0:
        out.append(codes.UBYTE)
        out.append(facts.rcv_settle_mode)
    else:
        out.append(codes.NULL)
    if count > 7:
        if state:
            out.write(state)
        else:
            out.append(codes.NULL)
    if count > 8:
        put_flag(out, value=facts.resume)
    if count > 9:
        put_flag(out, value=facts.aborted)
    if count > 10:
        put_flag(out, value=facts.batchable)


def _last_field(facts: TransferFacts, tag: bytes | None, state: bytes) -> i64:  # noqa: PLR0911 - one branch a field
    """The number of fields to write: up to the last one that is present."""
    if facts.batchable:
        return 11
    if facts.aborted:
        return 10
    if facts.resume:
        return 9
    if state:
        return 8
    if facts.rcv_settle_mode >= 0:
        return 7
    if facts.more:
        return 6
    if facts.settled >= 0:
        return 5
    if facts.message_format >= 0:
        return 4
    if tag is not None:
        return 3
    return 2 if facts.delivery_id >= 0 else 1


def _put_optional(out: BytesWriter, value: i64) -> None:
    if value < 0:
        out.append(codes.NULL)
    else:
        put_uint(out, value)
