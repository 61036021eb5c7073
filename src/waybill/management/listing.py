"""Lists: filtered, sorted, paginated, cut to columns, and made a few items at a time.

A list may have 100,000 items. The broker must not stall meanwhile, nor keep all items in memory for a slow client. So
filters and sorting use cheap fields where possible, only the items of the requested page are made in full, and a long
list without pages is made while it is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

import msgspec

from waybill.management.call import Answer, Call
from waybill.management.errors import Refused, bad_request
from waybill.model.errors import ModelError
from waybill.model.pattern import Pattern

T = TypeVar("T")
Item = dict[str, Any]

BATCH: Final = 25
"""Items to make before other requests are served."""
SCAN_BATCH: Final = 2000
"""Items whose cheap fields are read before other requests are served."""
STEPS_PER_ITEM_BITS: Final = 5
"""Matching takes at most as many steps as the product of the lengths of pattern and name."""
WHOLE_MAX: Final = 1000
"""Longer lists are sent in pieces."""
PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500
PATTERN_MAX: Final = 500
_ENCODER: Final = msgspec.json.Encoder()


class Listing(Generic[T]):
    """The objects of a kind. `cheap` are the fields that need no complete item."""

    def __init__(
        self, make: Callable[[T], Item], cheap: Mapping[str, Callable[[T], object]], *, tie: Callable[[T], object]
    ) -> None:
        """`tie` orders items that compare equal, and lists without `sort`."""
        self._make = make
        self._cheap = cheap
        self._tie = tie

    async def answer(self, call: Call, things: Iterable[T]) -> Answer:
        """Return the requested list. Raises Refused."""
        query = call.query
        await call.long_answers.step()
        found = list(things)
        total = len(found)
        is_paged = "page" in query
        name = query.get("name", "")
        if name and is_paged:
            found = await self._filtered_by_name(call, found, name, is_pattern=call.flag("use_regex"))
        sort = query.get("sort", "")
        is_reversed = call.flag("sort_reverse")
        if sort and sort not in self._cheap:
            return await self._answer_sorted_by_item(call, found, total, sort)
        self._sort(found, self._cheap[sort] if sort else self._tie, is_reversed=is_reversed)
        return await self._shown(call, found, total)

    async def _shown(self, call: Call, things: list[T], total: int) -> Answer:
        """Return the requested page and columns of a filtered and sorted list."""
        columns = _columns(call.query)
        if "page" in call.query:
            page = _Page(call.query, len(things))
            pieces = await self._encoded(call, things[page.start : page.start + page.size], columns)
            return Answer(200, octets=page.encoded(pieces, total, len(things)))
        if len(things) > WHOLE_MAX:
            call.long_answers.check(len(things))
            return Answer(200, stream=self._streamed(call, things, columns))
        return Answer(200, octets=b"[" + b",".join(await self._encoded(call, things, columns)) + b"]")

    async def _streamed(self, call: Call, things: list[T], columns: list[list[str]]) -> AsyncIterator[bytes]:
        with call.long_answers.sending(len(things)):
            for start in range(0, len(things), BATCH):
                pieces = await self._encoded(call, things[start : start + BATCH], columns)
                yield (b"," if start else b"[") + b",".join(pieces)
            yield b"]"

    @staticmethod
    def _sort(things: list[T], key: Callable[[T], Any], *, is_reversed: bool) -> None:
        try:
            things.sort(key=key, reverse=is_reversed)
        except TypeError:
            # Values of several kinds, such as none beside numbers.
            things.sort(key=lambda thing: _order(key(thing)), reverse=is_reversed)

    async def _answer_sorted_by_item(self, call: Call, things: list[T], total: int, sort: str) -> Answer:
        """Make all items, as only complete ones have the field to sort by. The items of the page are made again."""
        path = sort.split(".")
        keys: list[tuple[tuple[int, Any], int]] = []
        for start in range(0, len(things), BATCH):
            made = map(self._make, things[start : start + BATCH])
            keys += [(_order(_field(item, path)), start + index) for index, item in enumerate(made)]
            await call.long_answers.step()
        keys.sort(key=itemgetter(0), reverse=call.flag("sort_reverse"))
        return await self._shown(call, [things[index] for _, index in keys], total)

    async def _filtered_by_name(self, call: Call, things: list[T], name: str, *, is_pattern: bool) -> list[T]:
        """Return the things whose name contains a text, or matches a pattern."""
        if len(name) > PATTERN_MAX:
            raise bad_request("Name filter is too long")
        matches: Callable[[str], bool]
        if is_pattern:
            try:
                matches = Pattern(name).matches
            except ModelError as error:
                raise bad_request(f"Invalid regular expression in the name filter: {error}") from None
        else:
            wanted = name.lower()

            def matches(text: str) -> bool:
                return wanted in text.lower()

        found: list[T] = []
        named = self._cheap["name"]
        looks = 0
        for thing in things:
            text = str(named(thing))
            if matches(text):
                found.append(thing)
            looks += 1 + (len(name) * len(text) >> STEPS_PER_ITEM_BITS if is_pattern else 0)
            if looks >= SCAN_BATCH:
                looks = 0
                await call.long_answers.step()
        return found

    async def _encoded(self, call: Call, things: list[T], columns: list[list[str]]) -> list[bytes]:
        pieces: list[bytes] = []
        for start in range(0, len(things), BATCH):
            pieces += [encode(_cut(self._make(thing), columns)) for thing in things[start : start + BATCH]]
            await call.long_answers.step()
        return pieces


class _Page:
    """The requested page of a list. Raises Refused."""

    def __init__(self, query: Mapping[str, str], count: int) -> None:
        self.number = _positive(query.get("page", "1"), "page")
        self.size = _positive(query.get("page_size", str(PAGE_SIZE)), "page_size")
        if self.size > PAGE_SIZE_MAX:
            raise Refused(
                400,
                f"Invalid pagination parameters: page number {self.number}, page size {self.size}",
                "invalid_pagination_parameters",
            )
        self.count = max(-(-count // self.size), 1)
        if self.number > self.count:
            text = f"Page out of range, page: {self.number} page size: {self.size}, len: {count}"
            raise Refused(400, text, "page_out_of_range")
        self.start = (self.number - 1) * self.size

    def encoded(self, pieces: list[bytes], total: int, filtered: int) -> bytes:
        """Return the page as JSON, with its place in the list."""
        head = _ENCODER.encode(
            {
                "filtered_count": filtered,
                "item_count": len(pieces),
                "page": self.number,
                "page_count": self.count,
                "page_size": self.size,
                "total_count": total,
            }
        )
        return head[:-1] + b',"items":[' + b",".join(pieces) + b"]}"


def _positive(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) == 0:
        raise bad_request(f"{name} must be a positive integer")
    return int(text)


def _columns(query: Mapping[str, str]) -> list[list[str]]:
    return [name.split(".") for name in query.get("columns", "").split(",") if name]


def _cut(item: Item, columns: list[list[str]]) -> Item:
    """Return some fields of an item; `a.b` is the field b of the object a."""
    if not columns:
        return item
    cut: Item = {}
    for path in columns:
        value = _field(item, path)
        if value is None and path[0] not in item:
            continue
        into = cut
        for name in path[:-1]:
            into = into.setdefault(name, {})
            if not isinstance(into, dict):
                break
        else:
            into[path[-1]] = value
    return cut


def cut_to_columns(query: Mapping[str, str], item: Item) -> Item:
    """Return the requested columns of a single item."""
    return _cut(item, _columns(query))


def _field(item: object, path: list[str]) -> object:
    for name in path:
        item = item.get(name) if isinstance(item, dict) else None
    return item


def _order(value: object) -> tuple[int, Any]:
    """Return a sort key for values of all types: null, booleans, numbers, strings, others."""
    if value is None:
        return 0, 0
    if isinstance(value, (bool, int, float)):
        return 1, value
    if isinstance(value, tuple):
        return 2, "\0".join(map(str, value))
    return 2, str(value)


def encode(value: object) -> bytes:
    """Return JSON, with replacement characters for invalid UTF-8, and strings for values without a JSON type."""
    try:
        return _ENCODER.encode(value)
    except (UnicodeEncodeError, TypeError, ValueError, OverflowError):
        return _ENCODER.encode(plain(value))


def plain(value: object) -> object:
    """Convert a value of an AMQP table, or a container of such values, for JSON."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, dict):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    timestamp = getattr(value, "timestamp", None)
    return int(timestamp()) if callable(timestamp) else str(value)
