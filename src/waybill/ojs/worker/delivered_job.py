"""Reads delivered jobs of any producer: a valid envelope, or an error."""

from __future__ import annotations

import msgspec

from waybill.client import Delivery
from waybill.ojs.spec.envelope import MAX_TYPE_LENGTH, SPECVERSION, Envelope, check_required, read_envelope
from waybill.ojs.spec.envelope_size import MAX_DELIVERED_BYTES
from waybill.ojs.spec.headers import follows_binding
from waybill.ojs.spec.identifiers import is_uuid7


class _Names(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw(b"null")
    type: msgspec.Raw = msgspec.Raw(b"null")


_names = msgspec.json.Decoder(_Names)
_text = msgspec.json.Decoder(str)


def read_delivered(delivery: Delivery) -> Envelope:
    """Return the job of a delivery. Raises InvalidJob naming the missing or invalid field."""
    envelope = read_envelope(delivery.body)
    if envelope.specversion != SPECVERSION or type(envelope.args) is not list:
        check_required(envelope, follows_binding=follows_binding(delivery.encoded_properties))
    return envelope


def named_in(body: bytes) -> tuple[str | None, str | None]:
    """Return the id and the type in an invalid envelope, as far as it has them. Never raises."""
    if len(body) > MAX_DELIVERED_BYTES:
        return None, None
    try:
        names = _names.decode(body)
    except Exception:  # noqa: BLE001 - no body may raise anything
        return None, None
    job_id, job_type = _text_of(names.id), _text_of(names.type)
    return job_id if is_uuid7(job_id) else None, job_type if 0 < len(job_type) <= MAX_TYPE_LENGTH else None


def _text_of(value: msgspec.Raw) -> str:
    """Return a text; "" for any other value, which may have millions of others in it."""
    try:
        return _text.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
