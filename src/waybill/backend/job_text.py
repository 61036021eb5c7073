"""Makes the JSON of a job from its pushed JSON: fields are appended, and arguments are not decoded.

{"specversion":"1.0","id":...,"args":[...],..., "state":"available",...,"attempt":0}     as pushes write it
{"specversion":"1.0","id":...,"args":[...],..., "created_at":...,"state":"active",...}   as it is shown
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec

from waybill.ojs.spec.envelope import Envelope

_encode = msgspec.json.Encoder().encode


def with_fields(envelope: Envelope, text: bytes, fields: Mapping[str, object]) -> msgspec.Raw | None:
    """Return the JSON of an envelope with other fields at its end.

    Its times and its number of attempts stay. None if it has another form than pushes write, or may have one of the
    fields already: then it must be decoded.
    """
    begin = f'{{"specversion":"1.0","id":"{envelope.id}","type":"{envelope.type}","queue":"{envelope.queue}","args":['
    created, enqueued = envelope.created_at, envelope.enqueued_at
    times = f'"max_attempts":{envelope.max_attempts},"created_at":"{created}","enqueued_at":"{enqueued}",'
    end = f'"state":"available",{times}"attempt":0}}'
    if not text.startswith(begin.encode()) or not text.endswith(end.encode()):
        return None
    start = text[: -len(end)]
    for name in _quoted(tuple(fields)):
        if name in start:
            return None
    return msgspec.Raw(b"%b%b%b" % (start, times.encode(), _encode(fields)[1:]))


@functools.lru_cache(100)
def _quoted(names: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(f'"{name}"'.encode() for name in names)
