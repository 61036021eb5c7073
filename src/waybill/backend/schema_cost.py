"""What a schema may cost: its parts and patterns are counted before it is compiled, and each validation before it runs.

A step takes about 100 ns. Steps are the product of parts and values; and for each octet of the arguments, a thousandth
of the octets of all compiled patterns, which is how slow a text is that keeps a pattern in most of its states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from waybill.backend.job_form import Form
from waybill.ojs.spec.nesting import count_values

MAX_PARTS: Final = 10_000
MAX_PATTERN_BYTES: Final = 1 << 20
"""The maximum size of all compiled patterns of a schema."""
MIN_PATTERN_BYTES: Final = 1024
STATE_BYTES: Final = 1 << 20
"""The memory for the states in which the patterns of a schema have been."""
PART_BYTES: Final = 500
"""About how much a compiled part takes."""
OCTETS_PER_STEP: Final = 1000
MULTIPLE_PARTS: Final = 100
"""How many parts `multipleOf` counts for: it divides large numbers and fractions digit by digit."""
UNEVALUATED: Final = 3
"""By how much unevaluatedItems and unevaluatedProperties multiply: they evaluate the parts of their schema again."""

_REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_ANCHORS: Final = frozenset({"$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"})
_UNEVALUATED: Final = ("unevaluatedItems", "unevaluatedProperties")

FitsPattern = Callable[[str, int], bool]
"""Whether a pattern can be compiled into a number of octets."""


class SchemaRefused(Exception):
    """A schema costs too much, or refers to what is not in it."""


class SchemaCost(NamedTuple):
    """The parts of a schema, and the octets and the number of its compiled patterns, by each reference again."""

    parts: int = 0
    pattern_bytes: int = 0
    patterns: int = 0

    def plus(self, other: SchemaCost, times: int = 1) -> SchemaCost:
        """Return the sum of both, a number of times."""
        return SchemaCost(*(times * (one + more) for one, more in zip(self, other, strict=True)))

    def steps(self, args: bytes) -> int:
        """Return the number of steps to validate encoded arguments."""
        return self.parts * count_values(args) + self.pattern_bytes * len(args) // OCTETS_PER_STEP

    @property
    def state_bytes(self) -> int:
        """The memory for the states of each pattern."""
        return STATE_BYTES // max(1, 2 * self.patterns)

    @property
    def memory_bytes(self) -> int:
        """About the memory of the compiled schema."""
        return PART_BYTES * self.parts + 2 * self.pattern_bytes + (STATE_BYTES if self.patterns else 0)


def cost_of(schema: Form, fits: FitsPattern) -> SchemaCost:
    """Return what a schema costs. Raises SchemaRefused."""
    return _Count(schema, fits).whole()


class _Count:
    """Counts the parts of a schema, those of a reference each time again."""

    def __init__(self, schema: Form, fits: FitsPattern) -> None:
        definitions = schema.get("$defs")
        self._schema = schema
        self._definitions: Form = definitions if isinstance(definitions, dict) else {}
        self._fits = fits
        self._known: dict[str, SchemaCost] = {}
        self._patterns: dict[str, int] = {}

    def whole(self) -> SchemaCost:
        try:
            for part in self._definitions.values():
                self._cost(part, ())
            return self._cost(self._schema, ())
        except RecursionError:
            raise SchemaRefused("it is nested too deeply") from None

    def _cost(self, schema: object, inside: tuple[str, ...]) -> SchemaCost:
        cost = SchemaCost(1)
        if isinstance(schema, list):
            for one in schema:
                cost = cost.plus(self._cost(one, inside))
        elif isinstance(schema, dict):
            for name, one in schema.items():
                if name != "$defs":
                    cost = cost.plus(self._of_member(name, one, inside))
            cost = SchemaCost().plus(cost, UNEVALUATED ** sum(name in schema for name in _UNEVALUATED))
        if cost.parts > MAX_PARTS:
            raise SchemaRefused(f"it has more than {MAX_PARTS} parts")
        if cost.pattern_bytes > MAX_PATTERN_BYTES:
            raise SchemaRefused("its patterns are too large")
        return cost

    def _of_member(self, name: str, value: object, inside: tuple[str, ...]) -> SchemaCost:
        if name in _ANCHORS and isinstance(value, str):
            raise SchemaRefused(f"{name} is not supported")
        if name in _REFERENCES and isinstance(value, str):
            return self._of_reference(value, inside)
        cost = self._cost(value, inside)
        if name == "multipleOf":
            return cost.plus(SchemaCost(MULTIPLE_PARTS))
        if name == "pattern" and isinstance(value, str):
            return cost.plus(self._of_pattern(value))
        if name == "patternProperties" and isinstance(value, dict):
            for pattern in value:
                cost = cost.plus(self._of_pattern(pattern))
        return cost

    def _of_reference(self, reference: str, inside: tuple[str, ...]) -> SchemaCost:
        target = reference.removeprefix("#/$defs/")
        if target == reference or target not in self._definitions or target in inside:
            raise SchemaRefused(f"{reference[:200]} is not one of its definitions, or refers to itself")
        if target not in self._known:
            self._known[target] = self._cost(self._definitions[target], (*inside, target))
        return self._known[target]

    def _of_pattern(self, pattern: str) -> SchemaCost:
        size = self._patterns.get(pattern)
        if size is None:
            size = MIN_PATTERN_BYTES
            while not self._fits(pattern, size):
                if size >= MAX_PATTERN_BYTES:
                    raise SchemaRefused(f"the pattern {pattern[:200]} is invalid or too large")
                size *= 2
            self._patterns[pattern] = size
        return SchemaCost(0, size, 1)
