"""Encodes the result of a handler as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from waybill.ojs.results.outcome import RESULT_NOT_JSON, RESULT_TOO_LARGE
from waybill.ojs.spec.event_data import ErrorSummary
from waybill.ojs.spec.nesting import MAX_CARRIED_NESTING, is_nested_deeper

DEFAULT_SIZE_LIMIT: Final = 1024 * 1024


def encode_result(result: object, encode: Callable[[object], bytes], size_limit: int) -> bytes | ErrorSummary:
    """Return a result as JSON, or why it is not available; the job has completed in any case."""
    try:
        encoded = encode(result)
    except BaseException as error:  # noqa: BLE001 - results may have any type and depth, and encoders may raise anything
        text = f"the result, of type {type(result).__qualname__}, is not JSON: {type(error).__name__}"
        return ErrorSummary(code=RESULT_NOT_JSON, message=text)
    if len(encoded) > size_limit:
        text = f"the result is too large: {len(encoded)} bytes, {size_limit} are allowed"
        return ErrorSummary(code=RESULT_TOO_LARGE, message=text)
    if is_nested_deeper(encoded, MAX_CARRIED_NESTING):
        return ErrorSummary(code=RESULT_NOT_JSON, message="the result is nested too deeply")
    return encoded
