"""The events of records: values by key that programs other than coordinators store in the stream."""

from __future__ import annotations

import msgspec

from waybill.ojs.spec.event_data import EventData


class RecordPut(EventData, frozen=True, kw_only=True):
    """A record has this value from now on. The subject is its key, `schema/email.send` for example. An event of ours.

    With `expected`, it counts only if the record has this version; 0 stands for one that is not there. `expires_at` is
    when it is as if it were not there.
    """

    value: msgspec.Raw
    expected: int | None = None
    expires_at: str | None = None


class RecordRemoved(EventData, frozen=True, kw_only=True):
    """A record is gone; with `expected`, only if it has this version. An event of ours."""

    expected: int | None = None
