"""The outcome of a job as a message, from its worker or a coordinator to the process that pushed it.

A message to a reply queue of Waybill is a JSON array of outcomes; to any other queue, it is one outcome, with the
correlation id of the job's message. The worker sends it after the event of the end.

    {"id": "019...", "state": "completed", "result": 7}
    {"id": "019...", "state": "discarded", "error": {"code": "HANDLER_ERROR", "message": "...", "type": "ValueError"}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from waybill.client import BasicProperties
from waybill.ojs.observe.event_forms import is_plain
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.event_data import ErrorSummary
from waybill.ojs.spec.states import State

TYPE: Final = "ojs.job.outcome"
CONTENT_TYPE: Final = "application/json"
REPLY_QUEUES: Final = "ojs.reply."
"""The beginning of the names of Waybill's reply queues, after the prefix of the topology."""

RESULT_TOO_LARGE: Final = "RESULT_TOO_LARGE"
RESULT_NOT_JSON: Final = "RESULT_NOT_JSON"
RESULT_PRUNED: Final = "RESULT_PRUNED"
RESULT_MISMATCH: Final = "RESULT_MISMATCH"
JOB_EXPIRED: Final = "JOB_EXPIRED"

_COMPLETED: Final = State.COMPLETED.value
_REPLY_TO: Final = 0x02
"""The bit of `reply-to` in the first octet of the property flags."""


class Outcome(msgspec.Struct, omit_defaults=True):
    """The end of a job. A completed one with an error has no available result."""

    id: str
    state: str
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorSummary | None = None
    attempts: int = 0
    is_dead_letter: bool = False


_decoder: Final = msgspec.json.Decoder(list[Outcome])
_encode: Final = msgspec.json.Encoder().encode


def encode_completed(job_id: str, result: bytes | None) -> bytes:
    """Return the JSON of a success with this encoded result."""
    if result is None:
        result = b"null"
    quoted = f'"{job_id}"'.encode() if is_plain(job_id) else _encode(job_id)
    return b'{"id":%b,"state":"completed","result":%b}' % (quoted, result)


def encode_outcome(outcome: Outcome) -> bytes:
    """Return the JSON of any outcome."""
    return _encode(outcome)


def join_outcomes(outcomes: Sequence[bytes]) -> bytes:
    """Return the body of a message to a reply queue of Waybill."""
    return b"[%b]" % b",".join(outcomes)


def read_outcomes(body: bytes) -> list[Outcome]:
    """Read such a body. Raises msgspec.DecodeError or RecursionError if it is invalid."""
    return _decoder.decode(body)


def outcome_of(job: JobInfo) -> Outcome:
    """Return the outcome of an ended job from a coordinator's state."""
    error = None
    is_dead_letter = False
    if job.error is not None:
        try:
            error = msgspec.convert(job.error, ErrorSummary)
        except msgspec.ValidationError:
            error = ErrorSummary(code="HANDLER_ERROR", message=str(job.error.get("message", "")))
        is_dead_letter = job.error.get("dead_letter") is True
    if job.state == _COMPLETED and error is not None and not error.code.startswith("RESULT_"):
        # The error of an earlier attempt.
        error = None
    result = msgspec.Raw(_encode(job.result))
    return Outcome(job.id, job.state, result, error, job.attempt, is_dead_letter)


def wants_reply(encoded_properties: bytes) -> bool:
    """Whether a message has a reply queue."""
    return encoded_properties[0] & _REPLY_TO != 0


def reply_to_of(encoded_properties: bytes) -> str:
    """Return the reply queue of a message that has one, without decoding the rest. Raises ValueError if malformed.

    It is preceded by content-type, content-encoding, headers, delivery-mode, priority and correlation-id, if their bits
    are set.
    """
    encoded = encoded_properties
    try:
        flags = encoded[0]
        at = 2
        if flags & 0x80:
            at += 1 + encoded[at]
        if flags & 0x40:
            at += 1 + encoded[at]
        if flags & 0x20:
            at += 4 + int.from_bytes(encoded[at : at + 4])
        at += (flags >> 4 & 1) + (flags >> 3 & 1)
        if flags & 0x04:
            at += 1 + encoded[at]
        return bytes(encoded[at + 1 : at + 1 + encoded[at]]).decode()
    except IndexError as error:
        raise ValueError("the properties are malformed") from error


def correlation_of(encoded_properties: bytes, job_id: str) -> str:
    """Return the correlation id of an answer: that of the job's message, or else the job's id."""
    return BasicProperties.decode(encoded_properties).correlation_id or job_id
