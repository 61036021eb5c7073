"""The hot paths must agree with the objects."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from tests.wire.amqp10.strategies import DESCRIPTOR_FORMS, composites
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.composite import Composite, decode_composite
from waybill.wire.amqp10.disposition import (
    ACCEPTED_STATE,
    RELEASED_STATE,
    DispositionFacts,
    decode_state,
    scan_disposition,
    write_disposition,
)
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.error import Error
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.frames import frame, parse_frame
from waybill.wire.amqp10.messaging import Accepted, Modified, Rejected, Released
from waybill.wire.amqp10.performatives import Disposition, Transfer
from waybill.wire.amqp10.transfer import TransferFacts, scan_transfer, write_transfer
from waybill.wire.amqp10.types import Described, Symbol, UByte, UInt, ULong

transfers = composites([Transfer])
dispositions = composites([Disposition])


def code_of_state(state: object) -> int:
    if state is None:
        return 0
    return state.CODE if isinstance(state, Composite) else -1


def optional(value: int) -> int | None:
    return None if value < 0 else value


def transfer_of(data: bytes, facts: TransferFacts) -> Transfer:
    state = decode_state(data, facts.state_start, facts.state_end) if facts.state else None
    assert code_of_state(state) == facts.state
    return Transfer(
        handle=facts.handle,
        delivery_id=optional(facts.delivery_id),
        delivery_tag=None if facts.tag < 0 else data[facts.tag : facts.tag_end],
        message_format=optional(facts.message_format),
        settled=None if facts.settled < 0 else facts.settled == 1,
        more=facts.more,
        rcv_settle_mode=optional(facts.rcv_settle_mode),
        state=state,
        resume=facts.resume,
        aborted=facts.aborted,
        batchable=facts.batchable,
    )


def facts_of(transfer: Transfer) -> TransferFacts:
    facts = TransferFacts()
    facts.handle = transfer.handle
    facts.delivery_id = -1 if transfer.delivery_id is None else transfer.delivery_id
    facts.message_format = -1 if transfer.message_format is None else transfer.message_format
    facts.settled = -1 if transfer.settled is None else int(transfer.settled)
    facts.more = transfer.more
    facts.rcv_settle_mode = -1 if transfer.rcv_settle_mode is None else transfer.rcv_settle_mode
    facts.resume = transfer.resume
    facts.aborted = transfer.aborted
    facts.batchable = transfer.batchable
    return facts


FACTS = TransferFacts()


@given(transfers, st.binary(max_size=10), st.sampled_from(DESCRIPTOR_FORMS))
def test_a_transfer_is_scanned_as_it_is_decoded(
    transfer: Transfer, payload: bytes, form: Callable[[int], bytes]
) -> None:
    octets = form(descriptors.TRANSFER) + transfer.encode()[3:]
    data = b"??" + octets + payload + b"!!"
    # The same facts every time: nothing of the transfer before may stay.
    scan_transfer(data, 2, len(data) - 2, FACTS)
    assert FACTS.payload == 2 + len(octets)
    # Compared as octets: a NaN within a state equals nothing.
    assert transfer_of(data, FACTS).encode() == transfer.encode()


@given(transfers, st.integers(0, 65_535), st.binary(max_size=300))
def test_a_transfer_is_written_as_it_is_encoded(transfer: Transfer, channel: int, payload: bytes) -> None:
    out = BytesWriter()
    state = b"" if transfer.state is None else encode_value(transfer.state)
    write_transfer(out, channel, facts_of(transfer), transfer.delivery_tag, state, len(payload))
    out.write(payload)
    octets = out.getvalue()
    parsed = parse_frame(octets, 0, 1 << 20)
    assert parsed is not None
    assert parsed[1] == len(octets)
    assert parsed[0].channel == channel
    decoded, end = decode_composite(parsed[0].body)
    assert decoded.encode() == transfer.encode()
    assert parsed[0].body[end:] == payload


@pytest.mark.parametrize(
    "transfer",
    [
        Transfer(0),
        Transfer(1, 256, b"", 0, settled=True),
        Transfer(0, more=True),
        Transfer(2**32 - 1, 2**31, bytes(32), 2**32 - 1, settled=False, batchable=True),
    ],
)
def test_a_common_transfer_is_written_in_its_shortest_form(transfer: Transfer) -> None:
    out = BytesWriter()
    write_transfer(out, 3, facts_of(transfer), transfer.delivery_tag, b"", 4)
    out.write(b"body")
    assert out.getvalue() == frame(3, transfer.encode(), b"body")


@given(transfers)
def test_every_cut_of_a_transfer_is_refused(transfer: Transfer) -> None:
    octets = transfer.encode()
    for size in range(len(octets)):
        with pytest.raises(DecodeError):
            scan_transfer(octets, 0, size, TransferFacts())


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [None],
        [ULong(0)],
        [UInt(0), ULong(0)],
        [UInt(0), None, "tag"],
        [UInt(0), None, None, UByte(0)],
        [UInt(0), None, None, None, UInt(1)],
        [UInt(0), *[None] * 5, UInt(0)],
        [UInt(0), *[None] * 6, True],
        [UInt(0), *[None] * 10, None],
    ],
)
def test_wrong_transfers_are_refused(fields: list[object]) -> None:
    octets = encode_value(Described(ULong(0x14), fields))
    with pytest.raises(DecodeError):
        scan_transfer(octets, 0, len(octets), TransferFacts())


@pytest.mark.parametrize(
    "octets", [Accepted().encode(), b"", b"\x00", b"\x43", encode_value(Described(ULong(0x14), {}))]
)
def test_what_is_no_transfer_is_refused(octets: bytes) -> None:
    with pytest.raises(DecodeError):
        scan_transfer(octets, 0, len(octets), TransferFacts())
    with pytest.raises(DecodeError):
        scan_disposition(octets, 0, len(octets), DispositionFacts())


@given(transfers, st.integers(0), st.integers(0, 255))
def test_a_damaged_transfer_is_scanned_only_if_it_decodes(transfer: Transfer, place: int, octet: int) -> None:
    damaged = bytearray(transfer.encode())
    damaged[place % len(damaged)] = octet
    data = bytes(damaged)
    facts = TransferFacts()
    decoded: Composite | None = None
    with contextlib.suppress(DecodeError):
        decoded, _ = decode_composite(data)
    try:
        scan_transfer(data, 0, len(data), facts)
    except DecodeError:
        assert not isinstance(decoded, Transfer)
        return
    assert facts.payload <= len(data)
    if decoded is None:
        # The state is the one thing that a scan does not look into.
        assert facts.state
    else:
        assert transfer_of(data, facts).encode() == decoded.encode()


def disposition_of(data: bytes, facts: DispositionFacts) -> Disposition:
    return Disposition(
        role=facts.receiver,
        first=facts.first,
        last=facts.last,
        settled=facts.settled,
        state=decode_state(data, facts.state_start, facts.state_end) if facts.state else None,
        batchable=facts.batchable,
    )


def with_last(disposition: Disposition) -> bytes:
    last = disposition.first if disposition.last is None else disposition.last
    return Disposition(
        disposition.role, disposition.first, last, disposition.settled, disposition.state, disposition.batchable
    ).encode()


@given(dispositions, st.sampled_from(DESCRIPTOR_FORMS))
def test_a_disposition_is_scanned_as_it_is_decoded(disposition: Disposition, form: Callable[[int], bytes]) -> None:
    octets = form(descriptors.DISPOSITION) + disposition.encode()[3:]
    facts = DispositionFacts()
    scan_disposition(b"?" + octets + b"?", 1, 1 + len(octets), facts)
    assert facts.state == code_of_state(disposition.state)
    assert disposition_of(b"?" + octets, facts).encode() == with_last(disposition)
    for size in range(len(octets)):
        with pytest.raises(DecodeError):
            scan_disposition(octets, 0, size, facts)


@given(dispositions, st.integers(0, 65_535))
def test_a_disposition_is_written_as_it_is_encoded(disposition: Disposition, channel: int) -> None:
    last = disposition.first if disposition.last is None else disposition.last
    out = BytesWriter()
    write_disposition(
        out,
        channel,
        receiver=disposition.role,
        first=disposition.first,
        last=last,
        settled=disposition.settled,
        state=b"" if disposition.state is None else encode_value(disposition.state),
    )
    octets = out.getvalue()
    parsed = parse_frame(octets, 0, 1 << 20)
    assert parsed is not None
    assert parsed[1] == len(octets)
    decoded, end = decode_composite(parsed[0].body)
    assert end == len(parsed[0].body)
    expected = Disposition(
        disposition.role,
        disposition.first,
        None if last == disposition.first else last,
        disposition.settled,
        disposition.state,
    )
    assert decoded.encode() == expected.encode()


@pytest.mark.parametrize(
    ("fields", "trailing"),
    [
        ([], b""),
        ([True], b""),
        ([None, UInt(0)], b""),
        ([True, None], b""),
        ([True, ULong(0)], b""),
        ([True, UInt(0), True], b""),
        ([True, UInt(0), None, UInt(0)], b""),
        ([True, UInt(0), None, True, True], b""),
        ([True, UInt(0), None, True, None, UInt(1)], b""),
        ([True, UInt(0), None, True, None, True, None], b""),
        ([True, UInt(0)], b"\x40"),
    ],
)
def test_wrong_dispositions_are_refused(fields: list[object], trailing: bytes) -> None:
    octets = encode_value(Described(ULong(0x15), fields)) + trailing
    with pytest.raises(DecodeError):
        scan_disposition(octets, 0, len(octets), DispositionFacts())


def test_outcomes_that_are_written_as_they_are() -> None:
    assert Accepted().encode() == ACCEPTED_STATE
    assert Released().encode() == RELEASED_STATE


def test_states_are_decoded_alone() -> None:
    mine = Described(Symbol("example:state:list"), [])
    for state in (Accepted(), Modified(message_annotations={"x-opt-a": 1}), Rejected(Error("amqp:not-found")), mine):
        octets = encode_value(state)
        assert decode_state(b"?" + octets + b"?", 1, 1 + len(octets)) == state
        with pytest.raises(DecodeError):
            decode_state(octets + b"\x40", 0, len(octets) + 1)
    for octets in (b"", b"\x40", Error("c").encode()):
        with pytest.raises(DecodeError):
            decode_state(octets, 0, len(octets))
