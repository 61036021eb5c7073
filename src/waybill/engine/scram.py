"""The SCRAM-SHA-256 data of a user, for all protocols."""

from typing import Final

from waybill.wire.sasl.errors import MalformedResponse
from waybill.wire.sasl.scram import KEY_SIZE, ScramKeys, derive_keys

__all__ = ["ITERATIONS", "KEY_SIZE", "ScramKeys", "make_keys"]

ITERATIONS: Final = 15_000


def make_keys(password: str, salt: bytes, iterations: int) -> ScramKeys | None:
    """Return the keys for a password, None for one that SCRAM does not allow."""
    try:
        return derive_keys(password, salt, iterations)
    except (MalformedResponse, UnicodeEncodeError):
        return None
