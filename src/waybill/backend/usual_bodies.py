"""The bodies of requests in the usual form. Those with other fields take the slow path, which is authoritative.

They are in a module of their own because mypyc cannot compile structs.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from waybill.ojs.spec.envelope import MAX_SAFE_INTEGER

_Integer = Annotated[int, msgspec.Meta(ge=-MAX_SAFE_INTEGER, le=MAX_SAFE_INTEGER)]
_Value = bool | _Integer | float | str | None
_Values = _Value | list[_Value] | dict[str, _Value]
_Deeper = _Value | list[_Values] | dict[str, _Values]
_Deepest = _Value | list[_Deeper] | dict[str, _Deeper]


class PlainJob(msgspec.Struct, forbid_unknown_fields=True):
    """A `RequestedJob` whose arguments and metadata are not nested deeply, and checked by decoding them."""

    type: str
    args: list[_Deepest]
    meta: dict[str, _Deepest] | None = None
    options: msgspec.Raw = msgspec.Raw(b"")
    queue: str | None = None


class PlainJobs(msgspec.Struct, forbid_unknown_fields=True):
    """A batch of `PlainJob`s."""

    jobs: list[PlainJob]


class RequestedJob(msgspec.Struct, forbid_unknown_fields=True):
    """The common form of a job. Jobs with other fields take the slow path."""

    type: str
    args: list[object]
    meta: dict[str, object] | None = None
    options: msgspec.Raw = msgspec.Raw(b"")
    queue: str | None = None


class RequestedJobs(msgspec.Struct, forbid_unknown_fields=True):
    """A batch of `RequestedJob`s."""

    jobs: list[RequestedJob]


class JobTexts(msgspec.Struct):
    """The texts of the jobs of a batch."""

    jobs: list[msgspec.Raw]


class Ack(msgspec.Struct, forbid_unknown_fields=True):
    """The common form of an ack."""

    job_id: str
    worker_id: str = ""
    result: object = None
    attempt: int = 0
