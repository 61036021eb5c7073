"""LIKE: `%` matches any text, `_` one character; the escape character makes either literal."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.selector.tokens import SelectorError

ITEMS_PER_STEP_BITS: Final = 10


class LikePattern:
    """Matches any pattern in one pass. The possible positions in the pattern are the bits of a number.

    Bit i means that the first i items of the pattern have matched. An item matches one character; `%` is not an item,
    but a position that may stay where it is. `width`: the steps for each character.
    """

    def __init__(self, pattern: str, escape: str | None) -> None:
        """Raises SelectorError for an escape character that escapes nothing."""
        self._takes: dict[str, int] = {}
        self._takes_any = 0
        self._stays = 0
        items = 0
        position = 0
        while position < len(pattern):
            character = pattern[position]
            if character == escape:
                position += 1
                character = pattern[position : position + 1]
                if not character or (character not in "%_" and character != escape):
                    raise SelectorError(f"the escape character in {pattern!r} escapes neither %, _ nor itself")
                self._takes[character] = self._takes.get(character, 0) | 1 << items
                items += 1
            elif character == "%":
                self._stays |= 1 << items
            elif character == "_":
                self._takes_any |= 1 << items
                items += 1
            else:
                self._takes[character] = self._takes.get(character, 0) | 1 << items
                items += 1
            position += 1
        self._done = 1 << items
        self.width: i64 = 1 + (items >> ITEMS_PER_STEP_BITS)

    def matches(self, text: str) -> bool:
        places = 1
        for character in text:
            taking = self._takes.get(character, 0) | self._takes_any
            places = (places & taking) << 1 | places & self._stays
            if not places:
                return False
        return places & self._done != 0
