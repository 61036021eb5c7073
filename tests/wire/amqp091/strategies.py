"""Values that the codec can carry, for hypothesis."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import get_origin, get_type_hints

from hypothesis import strategies as st

from waybill.wire.amqp091.field_table import RawTimestamp
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.method_arguments import KINDS
from waybill.wire.amqp091.methods import METHODS
from waybill.wire.amqp091.properties import BasicProperties

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_SECOND = 253_402_300_799

# Octets that are no UTF-8 are part of what strings hold.
texts = st.text(max_size=40) | st.binary(max_size=40).map(lambda octets: octets.decode("utf-8", "surrogateescape"))
encodable_texts = texts.filter(
    lambda text: not any(0xD800 <= ord(c) < 0xDC80 or 0xDD00 <= ord(c) < 0xE000 for c in text)
)
# Escaped octets next to each other may form valid UTF-8, which then comes back unescaped: such a text is another one.
strings = encodable_texts.map(lambda text: text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape"))

decimals = st.builds(
    lambda unscaled, scale: Decimal(unscaled).scaleb(-scale),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 255),
)
timestamps = st.integers(0, LAST_SECOND).map(lambda seconds: EPOCH + timedelta(seconds=seconds)) | st.integers(
    LAST_SECOND + 1, 2**64 - 1
).map(RawTimestamp)
scalars = (
    strings
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=40)
    | st.none()
    | decimals
    | timestamps
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4),
    max_leaves=12,
)
tables = st.dictionaries(strings, values, max_size=6)

properties = st.builds(
    BasicProperties,
    content_type=st.none() | strings,
    content_encoding=st.none() | strings,
    headers=st.none() | tables,
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | strings,
    reply_to=st.none() | strings,
    expiration=st.none() | strings,
    message_id=st.none() | strings,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=st.none() | strings,
    user_id=st.none() | strings,
    app_id=st.none() | strings,
)

OF_KIND: dict[int, st.SearchStrategy[object]] = {
    KINDS["bit"]: st.booleans(),
    KINDS["octet"]: st.integers(0, 2**8 - 1),
    KINDS["short"]: st.integers(0, 2**16 - 1),
    KINDS["long"]: st.integers(0, 2**32 - 1),
    KINDS["longlong"]: st.integers(0, 2**64 - 1),
    KINDS["shortstr"]: strings,
    KINDS["longstr"]: strings,
    KINDS["octets"]: st.binary(max_size=80),
    KINDS["table"]: tables,
}

TYPE_OF_KIND: dict[int, type] = {
    KINDS["bit"]: bool,
    KINDS["octet"]: int,
    KINDS["short"]: int,
    KINDS["long"]: int,
    KINDS["longlong"]: int,
    KINDS["shortstr"]: str,
    KINDS["longstr"]: str,
    KINDS["octets"]: bytes,
    KINDS["table"]: dict,
}


def declared(method: type[Method]) -> dict[str, int]:
    """The kinds of a method's arguments by name, without the reserved ones."""
    arguments = method.ARGUMENTS
    return {name: kind for name, kind in zip(arguments.names, arguments.kinds, strict=True) if name != "-"}


def annotated(method: type[Method]) -> dict[str, object]:
    """The types of a method's attributes by name, without class variables and without what a compiler erases."""
    return {name: get_origin(hint) or hint for name, hint in get_type_hints(method).items() if not name.isupper()}


def methods_of(method: type[Method]) -> st.SearchStrategy[Method]:
    return st.builds(method, **{name: OF_KIND[kind] for name, kind in declared(method).items()})


methods = st.one_of([methods_of(method) for method in METHODS])
