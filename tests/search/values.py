"""Values at which programs fail: limits, odd texts, nests, and the names that the prepared node has."""

from decimal import Decimal
from typing import Final

from tests.search.choices import Choices
from waybill.wire.amqp091.field_table import RawTimestamp
from waybill.wire.amqp10.types import Array, Byte, Char, Described, Symbol, Timestamp, UByte, UInt, ULong, UShort

QUEUES: Final = ("q0", "q1", "q2", "q3", "q4", "q5", "s0", "lazy")
EXCHANGES: Final = ("", "direct", "topic", "fanout", "headers", "hash", "delayed", "amq.topic", "amq.headers", "chain")
KEYS: Final = ("", "q0", "q1", "q2", "q3", "q4", "s0", "a", "a.b", "a.b.c.d.e.f", "*.#.*.#", "#", "*", "k" * 255)
INTEGERS: Final = tuple(
    sorted(
        {
            sign * (1 << bits) + by
            for bits in (0, 7, 8, 15, 16, 31, 32, 53, 63, 64)
            for by in (-1, 0, 1)
            for sign in (1, -1)
        }
    )
)
TEXTS: Final = (
    "",
    "\0",
    "a" * 255,
    "é" * 127,
    "\udcff",
    "all",
    "any",
    "any-with-x",
    "0",
    "-1",
    "18446744073709551616",
    "amq.x",
)


def name(choices: Choices, known: tuple[str, ...]) -> str:
    """Mostly one that is there, else one of a few that may be made, or an odd one."""
    kind = choices.number(0, 9)
    if kind < 7:
        return choices.pick(known)
    return f"n{choices.number(0, 40)}" if kind < 9 else choices.pick(TEXTS)


def integer(choices: Choices, size: int) -> int:
    """An unsigned one of `size` octets, often at a limit of some type."""
    limit = 1 << (8 * size)
    if choices.chance(2):
        return choices.pick(INTEGERS) % limit
    return min(choices.number(0, 40), limit - 1)


def table(choices: Choices, depth: int = 0) -> dict[str, object]:
    """A field table of 0-9-1, of any shape."""
    shape = choices.number(0, 5)
    if shape == 0:
        return {}
    if shape == 1:
        nest: object = 1
        for _ in range(choices.number(1, 30)):
            nest = {"n": nest} if choices.chance(2) else [nest]
        return {"nest": nest}
    if shape == 2:
        return {f"k{index}": index for index in range(choices.amount(2000))}
    return {choices.pick((*TEXTS[2:], "x-match", "x", "CC", "BCC")): field_value(choices, depth) for _ in range(shape)}


def field_value(choices: Choices, depth: int = 0) -> object:
    kind = choices.number(0, 9)
    if kind == 0 and depth < 4:
        return table(choices, depth + 1)
    if kind == 1 and depth < 4:
        return [field_value(choices, depth + 1) for _ in range(choices.number(0, 5))]
    simple = (
        None,
        True,
        choices.pick(TEXTS),
        b"\xff" * choices.amount(300),
        float("nan"),
        float("inf"),
        Decimal("1e-255"),
        RawTimestamp((1 << 64) - 1),
        max(-(1 << 63), min(choices.pick(INTEGERS), (1 << 63) - 1)),
    )
    return choices.pick(simple)


def amqp_value(choices: Choices, depth: int = 0) -> object:
    """A value of the type system of 1.0."""
    kind = choices.number(0, 9)
    if kind == 0 and depth < 4:
        return {Symbol(f"k{index}"): amqp_value(choices, depth + 1) for index in range(choices.number(0, 6))}
    if kind == 1 and depth < 4:
        return [amqp_value(choices, depth + 1) for _ in range(choices.number(0, 6))]
    if kind == 2:
        return Array(0xA3, tuple(Symbol("s" * choices.number(1, 9)) for _ in range(choices.number(0, 5))))
    if kind == 3 and depth < 4:
        return Described(ULong(choices.number(0, 0x80)), amqp_value(choices, depth + 1))
    if kind == 4:
        nest: object = None
        for _ in range(choices.number(1, 28)):
            nest = [nest]
        return nest
    simple = (
        None,
        False,
        UByte(255),
        UShort(65535),
        UInt((1 << 32) - 1),
        ULong((1 << 64) - 1),
        Byte(-128),
        Timestamp((1 << 63) - 1),
        Timestamp(-(1 << 63)),
        Char("\U0010ffff"),
        float("nan"),
        Symbol("s" * 255),
        "t" * choices.amount(400),
        b"b" * choices.amount(400),
        -1,
    )
    return choices.pick(simple)
