"""Pagination: a cursor names the element before a page, so that no element is missed or repeated.

An offset, as in the specification, counts from the current beginning.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import Form
from waybill.backend.message import Request

LIMIT: Final = 50
MOST: Final = 1000
MAX_OFFSET: Final = 10**9
MOST_SKIPPED: Final = 10_000
"""The maximum offset in lists that read what they skip."""

T = TypeVar("T")


def cursor_of(request: Request) -> str:
    """Return the key after which the requested page begins, empty for the first. Raises RequestRefused."""
    text = request.query.get("cursor", "")
    try:
        key = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)).decode()
    except (binascii.Error, UnicodeError):
        key = "\0"
    if text and not (key and key.isprintable()):
        details: Form = {"field": "cursor"}
        raise RequestRefused("invalid_request", "cursor: does not belong to this list.", details=details)
    return key


def write_cursor(key: str) -> str:
    """Return a key as a cursor."""
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def limit_of(request: Request, default: int = LIMIT, most: int = MOST) -> int:
    """Return the requested page size. Raises RequestRefused."""
    return request.number("limit", request.number("per_page", default, 1, most), 1, most)


def offset_of(request: Request, limit: int) -> int:
    """Return how many elements to skip, from the offset or the page number. Raises RequestRefused."""
    page = request.number("page", 1, 1, MAX_OFFSET)
    return request.number("offset", (page - 1) * limit, 0, MAX_OFFSET)


def few_skipped(request: Request, limit: int) -> int:
    """Do the same for a list that reads what it skips. A cursor has no offset. Raises RequestRefused."""
    offset = 0 if request.query.get("cursor") else offset_of(request, limit)
    if offset > MOST_SKIPPED:
        raise invalid("offset", f"must be at most {MOST_SKIPPED}: continue with the cursor")
    return offset


def pagination_of(total: int | None, limit: int, offset: int, next_key: str | None) -> Form:
    """Return the pagination object: `next_key` is the key of the page's last element, None on the last page."""
    found: Form = {"limit": limit, "offset": offset, "has_more": next_key is not None}
    if total is not None:
        found["total"] = total
    found |= {"page": offset // limit + 1, "per_page": limit}
    if next_key is not None:
        found["next_cursor"] = write_cursor(next_key)
    return found


def page_of(
    request: Request, items: Sequence[T], key: Callable[[T], str], *, default: int = LIMIT, most: int = MOST
) -> tuple[list[T], Form]:
    """Return a page of a list ordered by key, and its pagination object. Raises RequestRefused."""
    limit = limit_of(request, default, most)
    after = cursor_of(request)
    offset = sum(key(one) <= after for one in items) if after else offset_of(request, limit)
    page = list(items[offset : offset + limit])
    has_more = offset + limit < len(items)
    return page, pagination_of(len(items), limit, offset, key(page[-1]) if has_more and page else None)


def page_by_place(
    request: Request, items: Sequence[T], *, default: int = LIMIT, most: int = MOST
) -> tuple[list[T], Form]:
    """Do the same for a list without keys: the cursor is the place in it."""
    numbered = [(f"{place:08}", one) for place, one in enumerate(items)]
    page, pagination = page_of(request, numbered, lambda one: one[0], default=default, most=most)
    return [one for _, one in page], pagination
