"""Reads delivered jobs of any producer: a valid envelope, or an error."""

from __future__ import annotations

import msgspec

from waybill.client import Delivery
from waybill.ojs.spec.envelope import (
    MAX_DELIVERED_BYTES,
    MAX_TYPE_LENGTH,
    SPECVERSION,
    Envelope,
    check_required,
    read_envelope,
)
from waybill.ojs.spec.headers import follows_binding
from waybill.ojs.spec.identifiers import is_uuid7


class _Names(msgspec.Struct):
    id: object = None
    type: object = None


_names = msgspec.json.Decoder(_Names)


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
    job_id = names.id if isinstance(names.id, str) and is_uuid7(names.id) else None
    job_type = names.type if isinstance(names.type, str) and len(names.type) <= MAX_TYPE_LENGTH else None
    return job_id, job_type
