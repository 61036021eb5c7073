"""The base of controls, commands and structs: fields, packed after flags that say which are present.

    | size, 0 1 2 or 4 octets | code u16, if it has one | flags, `pack` octets | fields that are there ... |

The first field has the lowest bit of the first octet of the flags. A bit has no octets: its flag is its value. A
declaration names fields and types in wire order; `!` marks those that are required:

    "name:vbin16! force:bit"

A bit is a bool. A required field is always written, and has an empty value if the peer omits it, as other
implementations do. Any other field is None if it is absent, and is written unless it is None.
"""

from typing import Any, ClassVar, Final, NoReturn, TypeVar, dataclass_transform

from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr

from waybill.wire.amqp010 import codes
from waybill.wire.amqp010.encode import Encodable, write_array, write_map
from waybill.wire.amqp010.errors import DecodeError, EncodeError
from waybill.wire.amqp010.octets import write_octets, write_text, write_unsigned
from waybill.wire.amqp010.sequence import read_ranges, write_ranges
from waybill.wire.amqp010.values import STRUCTS, Decoder, StructReader
from waybill.wire.amqp10.types import Uuid

BIT: Final = 0
UINT8: Final = 1
UINT16: Final = 2
UINT32: Final = 3
UINT64: Final = 4
STR8: Final = 5
STR16: Final = 6
VBIN8: Final = 7
VBIN16: Final = 8
VBIN32: Final = 9
MAP: Final = 10
ARRAY: Final = 11
STRINGS: Final = 12
STRUCT_ARRAY: Final = 13
UUID: Final = 14
RANGES: Final = 15
STRUCT32: Final = 16
STRUCT: Final = 17
BYTE_RANGES: Final = 18

KINDS: Final[dict[str, int]] = {
    "bit": BIT,
    "uint8": UINT8,
    "uint16": UINT16,
    "uint32": UINT32,
    "sequence-no": UINT32,
    "uint64": UINT64,
    "datetime": UINT64,
    "str8": STR8,
    "str16": STR16,
    "vbin8": VBIN8,
    "vbin16": VBIN16,
    "vbin32": VBIN32,
    "map": MAP,
    "array": ARRAY,
    "str16[]": STRINGS,
    "struct32[]": STRUCT_ARRAY,
    "uuid": UUID,
    "sequence-set": RANGES,
    "byte-ranges": BYTE_RANGES,
    "struct32": STRUCT32,
}
"""Types in declarations. Any other is the name of a struct."""

_INTEGER_WIDTHS: Final[dict[int, int]] = {UINT8: 1, UINT16: 2, UINT32: 4, UINT64: 8}
_TEXT_WIDTHS: Final[dict[int, int]] = {STR8: 1, STR16: 2}
_BINARY_WIDTHS: Final[dict[int, int]] = {VBIN8: 1, VBIN16: 2, VBIN32: 4}
_STRING_CODES: Final = frozenset({codes.STR8, codes.STR16, codes.STR8_LATIN, codes.STR16_LATIN})
_SECRETS: Final = frozenset({"response", "challenge"})


BY_NAME: Final[dict[str, "Fields"]] = {}
"""The fields of all structs, by name: a struct may be a field of another one."""


class Fields(StructReader):
    """The declared fields of one struct, in wire order. `size` and `pack` are in octets."""

    def __init__(self, cls: type[Any], declaration: str, size: int, pack: int) -> None:
        pairs = [pair.split(":") for pair in declaration.split()]
        self.cls = cls
        self.name: str = cls.NAME
        self.code: int = cls.CODE
        self.names: list[str] = [pair[0] for pair in pairs]
        types = [pair[1].rstrip("!") for pair in pairs]
        self.kinds: list[int] = [KINDS.get(one, STRUCT) for one in types]
        self.structs: list[str] = ["" if one in KINDS else one for one in types]
        self.size: i64 = size
        self.pack: i64 = pack

    # --- to octets ---

    def write_sized(self, out: BytesWriter, value: object, depth: i64) -> None:
        """Write the struct as a field: with its size and its code. Raises EncodeError."""
        if not isinstance(value, STRUCT_CLASS) or self.name != value.NAME:
            raise EncodeError(f"{self.name} is needed, not {type(value).__name__}")
        body = BytesWriter()
        if self.code:
            write_unsigned(body, self.code, 2)
        self.write(body, value, depth)
        if self.size:
            write_octets(out, body.getvalue(), int(self.size))
        else:
            out.write(body.getvalue())

    def write(self, out: BytesWriter, value: object, depth: i64) -> None:
        """Write flags and fields from the attributes of `value`. Raises EncodeError, which names the field."""
        flags: i64 = 0
        bit: i64 = 1
        body = BytesWriter()
        for index in range(len(self.names)):
            name = self.names[index]
            kind = self.kinds[index]
            field: object = getattr(value, name)
            if kind == BIT:
                if field:
                    flags |= bit
            elif field is not None:
                flags |= bit
                try:
                    self._write_field(body, index, kind, field, depth)
                except EncodeError as error:
                    raise EncodeError(f"{name}: {error}") from None
            bit += bit
        for _ in range(self.pack):
            out.append(flags & 0xFF)
            flags >>= 8
        out.write(body.getvalue())

    def _write_field(self, out: BytesWriter, index: int, kind: int, field: object, depth: i64) -> None:
        if kind in _INTEGER_WIDTHS:
            write_unsigned(out, field, _INTEGER_WIDTHS[kind])
        elif kind in _TEXT_WIDTHS:
            write_text(out, field, _TEXT_WIDTHS[kind])
        elif kind in _BINARY_WIDTHS:
            write_octets(out, field, _BINARY_WIDTHS[kind])
        elif kind == MAP:
            write_map(out, field, depth)
        elif kind == RANGES:
            write_ranges(out, field)
        elif kind == STRUCT:
            BY_NAME[self.structs[index]].write_sized(out, field, depth + 1)
        else:
            _write_rare_field(out, kind, field, depth)

    # --- from octets ---

    def read_sized(self, decoder: Decoder, depth: i64) -> object:
        reader = decoder.reader
        outer_end = reader.enter(reader.size(self.size))
        if self.code:
            code = reader.u16()
            if code != self.code:
                raise DecodeError(f"{self.name} has code {self.code:#06x}, not {code:#06x}")
        found = self.read_fields(decoder, depth)
        reader.leave(outer_end)
        return found

    def read_fields(self, decoder: Decoder, depth: i64) -> object:
        """Read flags and fields, without the size and code before them. Raises DecodeError, which names the field."""
        reader = decoder.reader
        flags: i64 = 0
        for index in range(self.pack):
            flags |= reader.u8() << (8 * index)
        found: object = object.__new__(self.cls)
        attributes: dict[str, object] = found.__dict__
        if self.pack == 0:
            flags = (1 << len(self.names)) - 1
        for index in range(len(self.names)):
            if flags & 1:
                name = self.names[index]
                kind = self.kinds[index]
                try:
                    attributes[name] = True if kind == BIT else self._read_field(decoder, index, kind, depth)
                except DecodeError as error:
                    raise DecodeError(f"{name}: {error}") from None
            flags >>= 1
        if flags:
            raise DecodeError(f"{self.name} has {len(self.names)} fields, and there are flags for more")
        return found

    def _read_field(self, decoder: Decoder, index: int, kind: int, depth: i64) -> object:  # noqa: PLR0911 - one branch a type
        reader = decoder.reader
        if kind == STR8:
            return reader.text(1)
        if kind == UINT8:
            return int(reader.u8())
        if kind == UINT16:
            return int(reader.u16())
        if kind == UINT32:
            return int(reader.u32())
        if kind == RANGES:
            return read_ranges(reader)
        if kind == MAP:
            return decoder.map(depth)
        if kind == UINT64:
            return reader.u64()
        if kind in _BINARY_WIDTHS:
            return reader.octets(reader.size(_BINARY_WIDTHS[kind]))
        if kind == STR16:
            return reader.text(2)
        if kind == STRUCT:
            return BY_NAME[self.structs[index]].read_sized(decoder, depth + 1)
        return _read_rare_field(decoder, kind, depth)


@dataclass_transform(frozen_default=True)
@mypyc_attr(native_class=False)
class Struct(Encodable):
    """A struct, control or command: fields are attributes, which do not change.

    `NAME` is the spec's ("queue.declare"); `CODE` is class code and code (0x0801), 0 for a struct without one.

    Subclasses stay ordinary classes in a compiled build: mypyc would treat class variables as fields.
    """

    CODE: ClassVar[int] = 0
    NAME: ClassVar[str] = ""
    FIELDS: ClassVar[Fields]

    def __init__(self, *values: object, **named: object) -> None:
        """Take the fields by position or by name; all have defaults. Raises TypeError as any function does."""
        known = self.FIELDS.names
        attributes = self.__dict__
        attributes.update(zip(known, values, strict=False))
        if len(values) > len(known) or not named.keys() <= set(known) - attributes.keys():
            raise TypeError(f"{self.NAME} takes {', '.join(known) or 'no fields'}: not {values!r}, {named!r}")
        attributes.update(named)

    def __eq__(self, other: object) -> bool:
        """Compare type and fields."""
        if type(other) is not type(self):
            return False
        return all(getattr(self, name) == getattr(other, name) for name in self.FIELDS.names)

    def __hash__(self) -> int:
        """Raise TypeError where a field is a map."""
        return hash((type(self), *[getattr(self, name) for name in self.FIELDS.names]))

    def __repr__(self) -> str:
        """Show the fields that were given, without secrets."""
        shown = [f"{name}={value!r}" for name, value in self.__dict__.items() if name not in _SECRETS]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cannot delete field {name!r}")

    def write_struct32(self, out: BytesWriter, depth: i64) -> None:
        if not self.CODE:
            raise EncodeError(f"{self.NAME} has no code")
        body = BytesWriter()
        write_unsigned(body, self.CODE, 2)
        self.FIELDS.write(body, self, depth)
        write_octets(out, body.getvalue(), 4)


@mypyc_attr(native_class=False)
class Control(Struct):
    """A control: about the connection or the session itself. Its code is always written.

    `TAKEN_BY_SERVER` and `TAKEN_BY_CLIENT` say who may receive it.
    """

    TAKEN_BY_SERVER: ClassVar[bool] = True
    TAKEN_BY_CLIENT: ClassVar[bool] = True


@mypyc_attr(native_class=False)
class Command(Struct):
    """A command: numbered, executed in order. `HAS_CONTENT`: header and body segments may follow it."""

    TAKEN_BY_SERVER: ClassVar[bool] = True
    TAKEN_BY_CLIENT: ClassVar[bool] = True
    HAS_CONTENT: ClassVar[bool] = False


STRUCT_CLASS: Final = (Struct,)
"""For isinstance(), as ENCODABLE is in `encode` and for the same reason."""


def _write_rare_field(out: BytesWriter, kind: int, field: object, depth: i64) -> None:
    if kind == UUID and isinstance(field, bytes) and len(field) == 16:
        out.write(bytes(field))
    elif kind == STRUCT32 and isinstance(field, STRUCT_CLASS):
        field.write_struct32(out, depth + 1)
    elif kind == STRINGS and isinstance(field, (tuple, list)):
        write_array(out, codes.STR16, field, depth)
    elif kind == STRUCT_ARRAY and isinstance(field, (tuple, list)):
        write_array(out, codes.STRUCT32, field, depth)
    elif kind in {ARRAY, BYTE_RANGES} and isinstance(field, bytes):
        write_octets(out, field, 4 if kind == ARRAY else 2)
    else:
        raise EncodeError(f"{type(field).__name__} is the wrong type")


def _read_rare_field(decoder: Decoder, kind: int, depth: i64) -> object:
    reader = decoder.reader
    if kind == UUID:
        return Uuid(reader.octets(16))
    if kind == STRUCT32:
        return decoder.struct32(depth)
    if kind == ARRAY:
        return reader.octets(reader.u32())
    if kind == BYTE_RANGES:
        return reader.octets(reader.u16())
    array = decoder.array(depth)
    items = array.items
    expected = array.code in _STRING_CODES if kind == STRINGS else array.code == codes.STRUCT32
    if items and not expected:
        raise DecodeError(f"an array of the type {array.code:#04x}")
    return items


StructT = TypeVar("StructT", bound=Struct)


class struct:  # noqa: N801 - used as a decorator
    """Class decorator that makes a class a struct: code, name and fields (see `Fields`)."""

    def __init__(self, code: int, name: str, declaration: str = "", *, size: int = 0, pack: int = 2) -> None:
        self.code = code
        self.name = name
        self.declaration = declaration
        self.size = size
        self.pack = pack

    def __call__(self, cls: type[StructT]) -> type[StructT]:
        """Set the class variables."""
        cls.CODE = self.code
        cls.NAME = self.name
        cls.FIELDS = Fields(cls, self.declaration, self.size, self.pack)
        BY_NAME[self.name] = cls.FIELDS
        if self.code and self.size == 4:
            STRUCTS[self.code] = cls.FIELDS
        return cls
