"""What the state knows of a job.

The structs are in a module of their own because mypyc cannot compile them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from waybill.ojs.spec.control_message import JobInfo


class JobRecord(JobInfo):
    """A job with what only the fold needs: `rank` orders its events."""

    rank: int = -1
    unique_key: str | None = None
    created_at: str | None = None
    owner: str | None = None
    """The user who pushed it, None if unknown."""
    message: dict[str, object] | None = None
    envelope: Any = None
    """The pushed envelope, if the event of the push contains it: a dict, or what `RawJobRecord` has."""
    errors: list[dict[str, object]] | None = None
    """The last MAX_ERRORS failed attempts. Only `error`, the last one, has a stack trace."""


class RawJobRecord(JobRecord):
    """A job whose envelope stays JSON, because folds do not read it. Events contain it as an object."""

    # Raw alone, not a union: msgspec decodes the value of a union.
    envelope: msgspec.Raw = None  # type: ignore[assignment]
