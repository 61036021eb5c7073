"""Format codes (1.0, 1.6): the octet before each value. Its high half says how the size is encoded.

    0x4. 0x5. 0x6. 0x7. 0x8. 0x9.   fixed: 0, 1, 2, 4, 8, 16 octets
    0xA. 0xB.                       variable: size in 1, 4 octets
    0xC. 0xD.                       compound: size and count in 1, 4 octets each
    0xE. 0xF.                       array: size and count in 1, 4 octets each, then one constructor for all elements

0x00 begins a described type: a descriptor (any value) and another constructor follow.
"""

from typing import Final

DESCRIBED: Final = 0x00

NULL: Final = 0x40
TRUE: Final = 0x41
FALSE: Final = 0x42
UINT_0: Final = 0x43
ULONG_0: Final = 0x44
LIST_0: Final = 0x45

UBYTE: Final = 0x50
BYTE: Final = 0x51
SMALL_UINT: Final = 0x52
SMALL_ULONG: Final = 0x53
SMALL_INT: Final = 0x54
SMALL_LONG: Final = 0x55
BOOLEAN: Final = 0x56

USHORT: Final = 0x60
SHORT: Final = 0x61

UINT: Final = 0x70
INT: Final = 0x71
FLOAT: Final = 0x72
CHAR: Final = 0x73
DECIMAL_32: Final = 0x74

ULONG: Final = 0x80
LONG: Final = 0x81
DOUBLE: Final = 0x82
TIMESTAMP: Final = 0x83
DECIMAL_64: Final = 0x84

DECIMAL_128: Final = 0x94
UUID: Final = 0x98

BINARY_8: Final = 0xA0
STRING_8: Final = 0xA1
SYMBOL_8: Final = 0xA3
BINARY_32: Final = 0xB0
STRING_32: Final = 0xB1
SYMBOL_32: Final = 0xB3

LIST_8: Final = 0xC0
MAP_8: Final = 0xC1
LIST_32: Final = 0xD0
MAP_32: Final = 0xD1

ARRAY_8: Final = 0xE0
ARRAY_32: Final = 0xF0

FIXED_SIZES: Final[tuple[int, ...]] = (0, 1, 2, 4, 8, 16)
"""Sizes of fixed values in octets, from category 0x4 on."""

CATEGORY_FIXED_0: Final = 0x4
CATEGORY_FIXED_16: Final = 0x9
CATEGORY_VARIABLE_8: Final = 0xA
CATEGORY_VARIABLE_32: Final = 0xB

ALL: Final = frozenset(
    {
        *(NULL, TRUE, FALSE, UINT_0, ULONG_0, LIST_0),
        *(UBYTE, BYTE, SMALL_UINT, SMALL_ULONG, SMALL_INT, SMALL_LONG, BOOLEAN),
        *(USHORT, SHORT, UINT, INT, FLOAT, CHAR, DECIMAL_32),
        *(ULONG, LONG, DOUBLE, TIMESTAMP, DECIMAL_64, DECIMAL_128, UUID),
        *(BINARY_8, STRING_8, SYMBOL_8, BINARY_32, STRING_32, SYMBOL_32),
        *(LIST_8, MAP_8, LIST_32, MAP_32, ARRAY_8, ARRAY_32),
    }
)
"""All codes of the specification."""

MAX_DEPTH: Final = 32
"""The depth of nested lists, maps, arrays and described types, the outermost included."""

MAX_VALUES: Final = 65_536
"""The default limit of values in one decoding: few octets may announce a great many values."""
