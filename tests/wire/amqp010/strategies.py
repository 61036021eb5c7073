"""Values, controls, commands and structs that the codec can carry, for hypothesis."""

from hypothesis import strategies as st

from waybill.wire.amqp010 import codes
from waybill.wire.amqp010.class_dtx import Xid
from waybill.wire.amqp010.class_message import ReplyTo
from waybill.wire.amqp010.class_session import CommandFragment, SessionHeader
from waybill.wire.amqp010.operations import COMMANDS, CONTROLS, STRUCTS
from waybill.wire.amqp010.struct import (
    ARRAY,
    BIT,
    BYTE_RANGES,
    MAP,
    RANGES,
    STR8,
    STR16,
    STRINGS,
    STRUCT,
    STRUCT32,
    STRUCT_ARRAY,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    UUID,
    VBIN8,
    VBIN16,
    VBIN32,
    Struct,
)
from waybill.wire.amqp010.types import Array, Datetime, Typed
from waybill.wire.amqp10.types import Byte, Char, Float, Int, Short, UByte, UInt, ULong, UShort, Uuid

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
uuids = st.binary(min_size=16, max_size=16).map(Uuid)
u32 = st.integers(0, 2**32 - 1)
ranges = st.lists(st.tuples(u32, st.integers(0, 2**31 - 1)), max_size=4).map(
    lambda found: tuple((first, (first + more) % 2**32) for first, more in found)
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 255).map(UByte),
    st.integers(0, 2**16 - 1).map(UShort),
    u32.map(UInt),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-128, 127).map(Byte),
    st.integers(-(2**15), 2**15 - 1).map(Short),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=32, allow_nan=False).map(Float),
    st.floats(allow_nan=False),
    st.integers(0, 2**64 - 1).map(Datetime),
    uuids,
    st.characters(exclude_categories=["Cs"]).map(Char),
    texts | st.just("x" * 300),
    st.binary(max_size=20) | st.just(b"b" * 300),
    st.binary(min_size=5, max_size=5).map(lambda octets: Typed(0xC8, octets)),
    st.binary(min_size=2, max_size=2).map(lambda octets: Typed(codes.BIN16, octets)),
    st.binary(max_size=9).map(lambda octets: Typed(0x9F, octets)),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(texts, inner, max_size=3),
        st.lists(u32.map(UInt), min_size=1, max_size=3).map(lambda items: Array(codes.UINT32, tuple(items))),
        st.lists(texts, min_size=1, max_size=3).map(lambda items: Array(codes.STR16, tuple(items))),
    ),
    max_leaves=8,
)
maps = st.dictionaries(texts, values, max_size=4)
xids = st.builds(Xid, u32, st.binary(max_size=255), st.binary(max_size=20))
reply_to = st.builds(ReplyTo, st.none() | texts, st.none() | texts)

_KINDS: dict[int, st.SearchStrategy[object]] = {
    BIT: st.booleans(),
    UINT8: st.integers(0, 255),
    UINT16: st.integers(0, 2**16 - 1),
    UINT32: u32,
    UINT64: st.integers(0, 2**64 - 1),
    STR8: texts,
    STR16: texts,
    VBIN8: st.binary(max_size=255),
    VBIN16: st.binary(max_size=300),
    VBIN32: st.binary(max_size=300),
    MAP: maps,
    ARRAY: st.binary(max_size=9),
    BYTE_RANGES: st.binary(max_size=16),
    STRINGS: st.lists(texts, max_size=3).map(tuple),
    STRUCT_ARRAY: st.lists(xids, max_size=3).map(tuple),
    UUID: uuids,
    RANGES: ranges,
    STRUCT32: xids,
}


def _instances(cls: type[Struct]) -> st.SearchStrategy[Struct]:
    fields = cls.FIELDS
    arguments: dict[str, st.SearchStrategy[object]] = {}
    for name, kind, struct in zip(fields.names, fields.kinds, fields.structs, strict=True):
        strategy = {"dtx.xid": xids, "message.reply-to": reply_to}[struct] if kind == STRUCT else _KINDS[kind]
        if getattr(cls, name) is None:
            strategy = st.none() | strategy
        arguments[name] = strategy
    return st.builds(cls, **arguments)


controls = st.one_of([_instances(cls) for cls in CONTROLS])
commands = st.one_of([_instances(cls) for cls in COMMANDS])
coded_structs = st.one_of([_instances(cls) for cls in STRUCTS if cls not in {SessionHeader, CommandFragment, ReplyTo}])
