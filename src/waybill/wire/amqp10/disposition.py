"""Disposition frames (1.0, 2.7.6) on the hot path, read and written without a `Disposition` object.

00 53 15 | C0 size count | role | first | last | settled | state | batchable
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.wire.amqp10 import codes
from waybill.wire.amqp10.composite import COMPOSITE, Composite, read_field
from waybill.wire.amqp10.decode import Decoder
from waybill.wire.amqp10.descriptors import DISPOSITION, read_descriptor, read_list
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.field_kinds import STATE
from waybill.wire.amqp10.frames import close_frame, write_frame_head
from waybill.wire.amqp10.scan import (
    ABSENT,
    NO_STATE,
    boolean_at,
    close_list,
    open_list,
    put_boolean,
    put_flag,
    put_uint,
    state_at,
    uint_at,
)
from waybill.wire.amqp10.types import Described

FIELD_COUNT: Final = 6

ACCEPTED_STATE: Final = b"\x00\x53\x24\x45"
"""Without an error."""
RELEASED_STATE: Final = b"\x00\x53\x26\x45"


class DispositionFacts:
    """The fields of a disposition. One object is reused for all of them.

    `receiver` is the role. `last` is `first` if absent. `state` is the code of the state's descriptor, 0 without one,
    -1 for one that the specification does not define. The state is `data[state_start:state_end]`, see `decode_state`.
    """

    def __init__(self) -> None:
        self.receiver: bool = False
        self.first: i64 = 0
        self.last: i64 = 0
        self.settled: bool = False
        self.state: i64 = NO_STATE
        self.state_start: i64 = 0
        self.state_end: i64 = 0
        self.batchable: bool = False


def scan_disposition(data: bytes, offset: i64, end: i64, facts: DispositionFacts) -> None:
    """Fill `facts` from the disposition `data[offset:end]`. Raises DecodeError, with `facts` undefined."""
    code, o = read_descriptor(data, offset, end)
    if code != DISPOSITION:
        raise DecodeError(f"a disposition is needed, not {code:#x}")
    count, o, stop = read_list(data, o, end)
    if count < 2 or count > FIELD_COUNT:
        raise DecodeError(f"{count} values for the 2 to {FIELD_COUNT} fields of a disposition")
    if stop != end:
        raise DecodeError("octets after a disposition")
    role, o = boolean_at(data, o, stop)
    first, o = uint_at(data, o, stop)
    if role < 0 or first < 0:
        raise DecodeError("a disposition without a role or deliveries")
    facts.receiver = role > 0
    facts.first = first
    facts.last = first
    facts.settled = False
    facts.state = NO_STATE
    facts.batchable = False
    if count > 2:
        last, o = uint_at(data, o, stop)
        if last != ABSENT:
            facts.last = last
    if count > 3:
        settled, o = boolean_at(data, o, stop)
        facts.settled = settled > 0
    if count > 4:
        facts.state_start = o
        facts.state, o = state_at(data, o, stop)
        facts.state_end = o
    if count > 5:
        batchable, o = boolean_at(data, o, stop)
        facts.batchable = batchable > 0
    if o != stop:
        raise DecodeError(f"{stop - o} octets after the fields of a disposition")


def decode_state(data: bytes, start: i64, end: i64) -> Composite | Described:
    """Decode the delivery state `data[start:end]`. An unknown one is Described. Raises DecodeError."""
    decoder = Decoder(data, start, end)
    state = read_field(STATE, decoder.value(1))
    if decoder.reader.offset != end or not isinstance(state, (*COMPOSITE, Described)):
        raise DecodeError("octets after a delivery state")
    return state


def write_disposition(
    out: BytesWriter, channel: i64, *, receiver: bool, first: i64, last: i64, settled: bool, state: bytes
) -> None:
    """Write a frame with a disposition of the deliveries `first` to `last`.

    `state` is an encoded delivery state or empty. All numbers must fit their fields; this is not checked.
    """
    start = write_frame_head(out, channel)
    room: i64 = len(state)
    fields = open_list(out, DISPOSITION, room)
    count: i64 = 2
    if state:
        count = 5
    elif settled:
        count = 4
    elif last != first:
        count = 3
    put_boolean(out, 1 if receiver else 0)
    put_uint(out, first)
    if count > 2:
        if last == first:
            out.append(codes.NULL)
        else:
            put_uint(out, last)
    if count > 3:
        put_flag(out, value=settled)
    if count > 4:
        out.write(state)
    close_list(out, fields, count, room)
    close_frame(out, start)
