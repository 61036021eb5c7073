"""Checks maps of application-headers as `values` does, without creating objects. Equal keys are not found."""

from mypy_extensions import i64

from waybill.wire.amqp010 import codes
from waybill.wire.amqp010.errors import DecodeError
from waybill.wire.amqp010.octets import Reader
from waybill.wire.amqp010.values import MAX_CHAR, MAX_DEPTH, MAX_VALUES, RESERVED, fixed_width, variable_width


class _Check:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.values_left: i64 = MAX_VALUES

    def compound(self, kind: i64, depth: i64) -> None:
        """A map, list or array, from its size on."""
        if depth > MAX_DEPTH:
            raise DecodeError(f"values nested deeper than {MAX_DEPTH}")
        reader = self.reader
        outer_end = reader.enter(reader.u32())
        if reader.offset < reader.end:
            code: i64 = reader.u8() if kind == codes.ARRAY else codes.VOID
            count = reader.u32()
            if count > self.values_left:
                raise DecodeError("too many values")
            self.values_left -= count
            for _ in range(count):
                if kind == codes.MAP:
                    reader.text(1)
                if kind != codes.ARRAY:
                    code = reader.u8()
                self.value(code, depth)
        reader.leave(outer_end)

    def value(self, code: i64, depth: i64) -> None:
        """A value of the type `code`."""
        reader = self.reader
        if code == codes.STR16 or code == codes.STR8:  # noqa: PLR1714 - native integers
            reader.text(2 if code == codes.STR16 else 1)
        elif code == codes.MAP or code == codes.LIST or code == codes.ARRAY:  # noqa: PLR1714 - native integers
            self.compound(code, depth + 1)
        elif code == codes.STRUCT32:
            if depth >= MAX_DEPTH:
                raise DecodeError(f"values nested deeper than {MAX_DEPTH}")
            size = reader.u32()
            if size < 2:
                raise DecodeError("a struct without its code")
            reader.take(size)
        else:
            self._simple(code)

    def _simple(self, code: i64) -> None:
        reader = self.reader
        width = fixed_width(code)
        if width != RESERVED:
            start = reader.take(width)
            if code == codes.CHAR_UTF32:
                reader.offset = start
                number = reader.u32()
                if number > MAX_CHAR or 0xD800 <= number < 0xE000:
                    raise DecodeError(f"{number:#x} is no character")
            return
        width = variable_width(code)
        if width == RESERVED:
            raise DecodeError(f"unknown type {code:#04x}")
        reader.take(reader.size(width))


def check_map(reader: Reader) -> None:
    """Check the map at the reader's offset, and skip it. Raises DecodeError."""
    _Check(reader).compound(codes.MAP, 1)
