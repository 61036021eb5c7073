"""Composite types (1.0, 1.4): described lists whose values are the fields of a type, by position.

A declaration names the fields in wire order. `!` marks mandatory fields, `[]` those that may have several values:

    "container_id:string! hostname:string offered_capabilities:symbol[]"

Null means the default of the dataclass; trailing nulls are omitted. Numbers and symbols are decoded as plain int and
str if the declaration gives their type. If it allows several types, they keep their wrappers.
"""

import dataclasses
from typing import ClassVar, Final, TypeVar

from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr

from waybill.wire.amqp10 import codes
from waybill.wire.amqp10.decode import Decoder
from waybill.wire.amqp10.descriptors import NAMES, UNKNOWN, code_of, write_descriptor
from waybill.wire.amqp10.encode import Encodable, encode_value, write_list
from waybill.wire.amqp10.errors import DecodeError, EncodeError
from waybill.wire.amqp10.field_kinds import (
    ARCHETYPES,
    ERROR,
    KINDS,
    STATE,
    UNSETTLED,
    read_simple_field,
    write_field,
    wrong_type,
)
from waybill.wire.amqp10.types import Described


class Fields:
    """The declared fields of one composite type, in wire order."""

    def __init__(self, declaration: str, defaults: dict[str, object]) -> None:
        """Read a declaration: `name:kind` pairs separated by spaces."""
        self.names: list[str] = []
        self.kinds: list[int] = []
        self.mandatory: list[bool] = []
        self.defaults: list[object] = []
        for pair in declaration.split():
            name, _, kind = pair.partition(":")
            self.names.append(name)
            self.kinds.append(KINDS[kind.rstrip("!")])
            self.mandatory.append(kind.endswith("!"))
            self.defaults.append(defaults.get(name))

    def write_to(self, out: BytesWriter, value: object, depth: i64) -> None:
        """Write the list of fields from the attributes of `value`. Raises EncodeError, which names the field."""
        body = BytesWriter()
        size: i64 = 0
        count = 0
        for index in range(len(self.names)):
            name = self.names[index]
            field = getattr(value, name)
            absent = field is None or field == ()
            if absent and self.mandatory[index]:
                raise EncodeError(f"{name}: a value is needed")
            if absent or (field == self.defaults[index] and not self.mandatory[index]):
                body.append(codes.NULL)
                continue
            try:
                write_field(body, self.kinds[index], field, depth + 1)
            except EncodeError as error:
                raise EncodeError(f"{name}: {error}") from None
            count = index + 1
            size = len(body)
        write_list(out, count, body.getvalue()[:size])

    def arguments(self, values: list[object]) -> dict[str, object]:
        """The fields that are present, by name. Raises DecodeError, which names the field."""
        if len(values) > len(self.names):
            raise DecodeError(f"{len(values)} values for {len(self.names)} fields")
        found: dict[str, object] = {}
        for index in range(len(self.names)):
            name = self.names[index]
            value = values[index] if index < len(values) else None
            if value is not None:
                try:
                    value = read_field(self.kinds[index], value)
                except DecodeError as error:
                    raise DecodeError(f"{name}: {error}") from None
            if self.mandatory[index] and (value is None or value == ()):
                raise DecodeError(f"{name}: a value is needed")
            if value is not None:
                found[name] = value
        return found


@mypyc_attr(native_class=False)
class Composite(Encodable):
    """A composite type: a frozen dataclass with the fields as its attributes.

    Subclasses stay ordinary classes in a compiled build: mypyc would treat class variables as fields. What comes with
    each message uses `transfer`, `disposition` and `sections` instead.
    """

    CODE: ClassVar[int] = 0
    NAME: ClassVar[str] = ""
    FIELDS: ClassVar[Fields] = Fields("", {})

    def encode(self) -> bytes:
        """The described list. Raises EncodeError, which names the field."""
        return encode_value(self)

    def write_to(self, out: BytesWriter, depth: i64) -> None:
        """Write the described list. Raises EncodeError, which names the field."""
        if depth + 1 > codes.MAX_DEPTH:
            raise EncodeError(f"values nested deeper than {codes.MAX_DEPTH}")
        write_descriptor(out, self.CODE)
        self.FIELDS.write_to(out, self, depth + 1)


COMPOSITE: Final = (Composite,)
"""For isinstance(), as ENCODABLE is in `encode` and for the same reason."""

CLASSES: Final[dict[int, type[Composite]]] = {}
"""All composite types by code. The modules that declare them fill this."""

CompositeT = TypeVar("CompositeT", bound=Composite)


class composite:  # noqa: N801 - used as a decorator
    """Declares a dataclass as a composite type, with its code and its fields (see `Fields`)."""

    def __init__(self, code: int, declaration: str = "") -> None:
        self.code = code
        self.declaration = declaration

    def __call__(self, cls: type[CompositeT]) -> type[CompositeT]:
        """Set the class variables."""
        cls.CODE = self.code
        cls.NAME = NAMES[self.code]
        defaults = {
            field.name: None if field.default is dataclasses.MISSING else field.default
            for field in dataclasses.fields(cls)  # type: ignore[arg-type] # the decorator below made it a dataclass
        }
        cls.FIELDS = Fields(self.declaration, defaults)
        CLASSES[self.code] = cls
        return cls


def read_field(kind: int, value: object) -> object:
    """Check and convert a decoded value that is not null. Raises DecodeError."""
    if kind in ARCHETYPES:
        return _read_composite(kind, value)
    if kind == UNSETTLED:
        return _read_unsettled(value)
    return read_simple_field(kind, value)


def _read_composite(kind: int, value: object) -> object:
    if not isinstance(value, Described):
        raise wrong_type(value)
    code = code_of(value.descriptor)
    if code == UNKNOWN and kind != ERROR:
        return value
    if code not in ARCHETYPES[kind]:
        raise DecodeError(f"{value.descriptor!r} is of the wrong archetype")
    return from_described(value)


def _read_unsettled(value: object) -> dict[bytes, object]:
    if not isinstance(value, dict):
        raise wrong_type(value)
    states: dict[bytes, object] = {}
    last: object = None
    read: object = None
    for tag, state in value.items():
        if type(tag) is not bytes:
            raise DecodeError(f"a delivery-tag is binary, not {type(tag).__name__}")
        if state is not last:
            last = state
            read = None if state is None else _read_composite(STATE, state)
        states[tag] = read
    return states


def from_described(value: object) -> Composite:
    """Convert a decoded value to its composite type. Raises DecodeError if it has no known one."""
    if not isinstance(value, Described):
        raise DecodeError(f"a composite type is needed, not {type(value).__name__}")
    cls = CLASSES.get(code_of(value.descriptor))
    if cls is None:
        raise DecodeError(f"no composite type is described by {value.descriptor!r}")
    fields = value.value
    if not isinstance(fields, list):
        raise DecodeError(f"{cls.NAME} is a list, not {type(fields).__name__}")
    try:
        return cls(**cls.FIELDS.arguments(fields))
    except DecodeError as error:
        raise DecodeError(f"{cls.NAME}: {error}") from None


def decode_composite(data: bytes, offset: i64 = 0, end: i64 = -1) -> tuple[Composite, int]:
    """Decode the composite value at `offset` in `data[:end]` (-1: all). Returns it and the offset after it.

    Raises DecodeError.
    """
    decoder = Decoder(data, offset, len(data) if end == -1 else end)
    value = decoder.value(1)
    return from_described(value), decoder.reader.offset
