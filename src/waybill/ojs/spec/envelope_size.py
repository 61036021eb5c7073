"""How large a job may be: its octets, and the values that it takes to decode them."""

from __future__ import annotations

from typing import Final

from waybill.ojs.errors import InvalidJob, JobTooLarge
from waybill.ojs.spec.nesting import MAX_CARRIED_WEIGHT, MAX_WEIGHT, is_too_heavy

MAX_ENVELOPE_BYTES: Final = 16 * 1024 * 1024
MAX_DELIVERED_BYTES: Final = 2 * MAX_ENVELOPE_BYTES
"""A job grows by the errors and the checkpoint of its attempts."""


def check_pushed(body: bytes) -> None:
    """Refuse a job that is too large to be pushed. Raises InvalidJob."""
    _check(body, MAX_ENVELOPE_BYTES, MAX_CARRIED_WEIGHT)


def check_delivered(body: bytes) -> None:
    """Refuse a job that is too large to be decoded. Raises InvalidJob."""
    _check(body, MAX_DELIVERED_BYTES, MAX_WEIGHT)


def _check(body: bytes, most_bytes: int, most_values: int) -> None:
    if len(body) > most_bytes:
        raise JobTooLarge("envelope", len(body), most_bytes, code="PAYLOAD_TOO_LARGE")
    if is_too_heavy(body, most_values):
        text = f"has more than {most_values} values; an array or an object counts for 4"
        raise InvalidJob("envelope", text, code="PAYLOAD_TOO_LARGE")
