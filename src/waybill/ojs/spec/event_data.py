"""What every event's data is."""

from __future__ import annotations

import msgspec


class EventData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base of event data; optional fields that are None are omitted."""


class ErrorSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error inside an event: its OJS code, its text, the handler's name for it."""

    code: str
    message: str
    type: str | None = None
    retryable: bool | None = None
    stack_trace: str | None = None
    timeout_kind: str | None = None
    limit_seconds: float | None = None
    elapsed_seconds: float | None = None
