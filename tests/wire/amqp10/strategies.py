"""Values that the codec can carry, for hypothesis."""

import math
from dataclasses import fields, is_dataclass

from hypothesis import strategies as st

from waybill.wire.amqp10 import codes, descriptors
from waybill.wire.amqp10.composite import CLASSES, Composite
from waybill.wire.amqp10.encode import EMPTY_VALUES, INTEGER_FORMS, encode_value
from waybill.wire.amqp10.field_kinds import ARCHETYPES, KINDS, OUTCOME
from waybill.wire.amqp10.message import Header, Properties
from waybill.wire.amqp10.performatives import PERFORMATIVES
from waybill.wire.amqp10.security import SASL_BODIES
from waybill.wire.amqp10.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    OddMap,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
)

U32 = st.integers(0, 2**32 - 1)
strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.just("x" * 300)
symbol_texts = st.text(st.characters(max_codepoint=127), max_size=30) | st.just("s" * 300)
symbols = symbol_texts.map(Symbol)
ulongs = (st.integers(0, 300) | st.integers(0, 2**64 - 1)).map(ULong)
uuids = st.binary(min_size=16, max_size=16).map(Uuid)
binaries = st.binary(max_size=30) | st.just(b"b" * 300)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 255).map(UByte),
    st.integers(0, 2**16 - 1).map(UShort),
    (st.integers(0, 300) | U32).map(UInt),
    ulongs,
    st.integers(-128, 127).map(Byte),
    st.integers(-(2**15), 2**15 - 1).map(Short),
    (st.integers(-200, 200) | st.integers(-(2**31), 2**31 - 1)).map(Int),
    st.integers(-200, 200) | st.integers(-(2**63), 2**63 - 1),
    st.floats(width=32).map(Float),
    st.floats(),
    st.binary(min_size=4, max_size=4).map(Decimal32),
    st.binary(min_size=8, max_size=8).map(Decimal64),
    st.binary(min_size=16, max_size=16).map(Decimal128),
    st.characters(exclude_categories=["Cs"]).map(Char),
    st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    uuids,
    binaries,
    strings,
    symbols,
)

ELEMENTS: dict[int, st.SearchStrategy[object]] = {
    **{code: st.just(value) for code, value in EMPTY_VALUES.items()},
    **{
        code: st.integers(-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1)
        if signed
        else st.integers(0, 2 ** (8 * size) - 1)
        for code, (size, signed) in INTEGER_FORMS.items()
    },
    codes.BOOLEAN: st.booleans(),
    codes.FLOAT: st.floats(width=32),
    codes.DOUBLE: st.floats(),
    codes.CHAR: st.characters(exclude_categories=["Cs"]),
    codes.DECIMAL_32: st.binary(min_size=4, max_size=4),
    codes.DECIMAL_64: st.binary(min_size=8, max_size=8),
    codes.DECIMAL_128: st.binary(min_size=16, max_size=16),
    codes.UUID: st.binary(min_size=16, max_size=16),
    codes.BINARY_8: st.binary(max_size=30),
    codes.BINARY_32: binaries,
    codes.STRING_8: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    codes.STRING_32: strings,
    codes.SYMBOL_8: st.text(st.characters(max_codepoint=127), max_size=20),
    codes.SYMBOL_32: symbol_texts,
}
"""What the elements of an array of a primitive type may be, by format code."""

WRAPPERS: dict[int, type] = {
    codes.UINT_0: UInt,
    codes.ULONG_0: ULong,
    codes.UBYTE: UByte,
    codes.SMALL_UINT: UInt,
    codes.SMALL_ULONG: ULong,
    codes.USHORT: UShort,
    codes.UINT: UInt,
    codes.ULONG: ULong,
    codes.BYTE: Byte,
    codes.SMALL_INT: Int,
    codes.SHORT: Short,
    codes.INT: Int,
    codes.TIMESTAMP: Timestamp,
    codes.FLOAT: Float,
    codes.CHAR: Char,
    codes.DECIMAL_32: Decimal32,
    codes.DECIMAL_64: Decimal64,
    codes.DECIMAL_128: Decimal128,
    codes.UUID: Uuid,
    codes.SYMBOL_8: Symbol,
    codes.SYMBOL_32: Symbol,
}


def primitive_arrays(code: int) -> st.SearchStrategy[Array]:
    wrap = WRAPPERS.get(code, lambda item: item)
    return st.builds(
        Array,
        code=st.just(code),
        items=st.lists(ELEMENTS[code].map(wrap), max_size=4).map(tuple),
        descriptors=st.lists(symbols | ulongs, max_size=2).map(tuple),
    )


arrays = st.sampled_from(sorted(ELEMENTS)).flatmap(primitive_arrays)


def distinct(pairs: list[tuple[object, object]]) -> object:
    """A map of the pairs, without those whose key was there before."""
    by_encoding: dict[bytes, tuple[object, object]] = {}
    for key, value in pairs:
        by_encoding.setdefault(encode_value(key), (key, value))
    kept = list(by_encoding.values())
    try:
        mapping = dict(kept)
    except TypeError:
        return OddMap(tuple(kept))
    return mapping if len(mapping) == len(kept) else OddMap(tuple(kept))


def nest(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    lists = st.lists(inner, max_size=4)
    maps = st.lists(st.tuples(inner, inner), max_size=4).map(distinct)
    return st.one_of(
        lists,
        maps,
        st.builds(Described, descriptor=symbols | ulongs | inner, value=inner),
        st.builds(Array, code=st.just(codes.LIST_32), items=st.lists(lists, max_size=3).map(tuple)),
        st.builds(Array, code=st.just(codes.MAP_32), items=st.lists(maps, max_size=3).map(tuple)),
        st.builds(Array, code=st.just(codes.ARRAY_32), items=st.lists(arrays, max_size=3).map(tuple)),
    )


values = st.recursive(scalars | arrays, nest, max_leaves=10)

field_maps = st.dictionaries(symbols, values, max_size=3)


def composites(classes: list[type[Composite]]) -> st.SearchStrategy[Composite]:
    return st.deferred(lambda: st.one_of([instances(cls) for cls in classes]))


def of_archetype(kind: int) -> st.SearchStrategy[object]:
    return composites([CLASSES[code] for code in sorted(ARCHETYPES[kind])])


foreign = st.builds(Described, descriptor=st.just(Symbol("example:mine:list")), value=st.lists(scalars, max_size=2))

OF_KIND: dict[int, st.SearchStrategy[object]] = {
    KINDS["any"]: values.filter(lambda value: value is not None),
    KINDS["boolean"]: st.booleans(),
    KINDS["ubyte"]: st.integers(0, 255),
    KINDS["ushort"]: st.integers(0, 2**16 - 1),
    KINDS["uint"]: st.integers(0, 300) | U32,
    KINDS["ulong"]: st.integers(0, 2**64 - 1),
    KINDS["string"]: strings,
    KINDS["symbol"]: symbol_texts,
    KINDS["binary"]: binaries,
    KINDS["timestamp"]: st.integers(-(2**63), 2**63 - 1),
    KINDS["symbol[]"]: st.lists(symbol_texts, min_size=1, max_size=3).map(tuple),
    KINDS["message_id"]: ulongs | uuids | binaries | strings,
    KINDS["map"]: field_maps,
    KINDS["fields"]: field_maps,
    KINDS["named"]: field_maps,
    KINDS["annotations"]: st.dictionaries(symbols | ulongs, values, max_size=3),
    KINDS["error"]: of_archetype(KINDS["error"]),
    KINDS["source"]: of_archetype(KINDS["source"]) | foreign,
    KINDS["target"]: of_archetype(KINDS["target"]) | foreign,
    KINDS["state"]: of_archetype(KINDS["state"]) | foreign,
    KINDS["outcome"]: of_archetype(OUTCOME) | foreign,
    KINDS["unsettled"]: st.dictionaries(
        st.binary(max_size=32), st.none() | of_archetype(KINDS["state"]) | foreign, max_size=3
    ),
}


def instances(cls: type[Composite]) -> st.SearchStrategy[Composite]:
    table = cls.FIELDS
    arguments = {}
    for name, kind, mandatory, default in zip(table.names, table.kinds, table.mandatory, table.defaults, strict=True):
        arguments[name] = OF_KIND[kind] if mandatory else st.just(default) | OF_KIND[kind]
    return st.builds(cls, **arguments)


performatives = composites(list(PERFORMATIVES))
all_composites = composites([CLASSES[code] for code in sorted(CLASSES)])
sasl_bodies = composites(list(SASL_BODIES))
headers = composites([Header])
properties = composites([Properties])


def same(one: object, other: object) -> bool:
    """Whether two values are equal, and of the same types inside and out: 1, True, UInt(1) and 1.0 differ."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return same(list(one.items()), list(other.items()))
    if is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    return one == other


DESCRIPTOR_FORMS = [
    lambda code: b"\x00\x53" + bytes([code]),
    lambda code: b"\x00\x80" + code.to_bytes(8, "big"),
    lambda code: b"\x00\xa3" + bytes([len(descriptors.NAMES[code])]) + descriptors.NAMES[code].encode(),
    lambda code: b"\x00\xb3" + len(descriptors.NAMES[code]).to_bytes(4, "big") + descriptors.NAMES[code].encode(),
]
"""Every way to write a descriptor of the specification."""
