"""What every event's data is."""

from __future__ import annotations

import msgspec


class EventData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base of event data; optional fields that are None are omitted."""
