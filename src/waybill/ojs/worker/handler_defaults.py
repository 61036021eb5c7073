"""The options of a handler, for jobs without options from programs that do not know the handler.

The queue and the priority of a job are decided by its push; the worker can set everything else. The body of the job is
not changed: each attempt uses the options of the handler that runs it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from waybill.client import Delivery
from waybill.ojs.handler import AnyHandler
from waybill.ojs.push.new_envelope import whole_or_ms
from waybill.ojs.spec.envelope import Envelope, edit_envelope
from waybill.ojs.spec.headers import MAX_ATTEMPTS
from waybill.ojs.spec.retry import DEFAULT_RETRY


class HandlerDefaults:
    """The default options of one handler."""

    def __init__(self, handler: AnyHandler) -> None:
        options = handler.defaults
        self._retry = options.get("retry")
        self._timeout = whole_or_ms(options.get("timeout"))
        self._visibility = whole_or_ms(options.get("visibility_timeout"))
        self._priority = options.get("priority", 0)
        result_ttl = options.get("result_ttl")
        self._result_ttl = None if result_ttl is None else math.ceil(result_ttl)
        self._result_size_limit = options.get("result_size_limit")

    def __bool__(self) -> bool:
        """Return whether there are any."""
        of_results = (self._result_ttl, self._result_size_limit)
        has_times = any(self._timeout) or any(self._visibility)
        return bool(self._retry or has_times or self._priority) or of_results != (None, None)

    def fill(self, envelope: Envelope, delivery: Delivery) -> None:
        """Set what a delivered job leaves unset."""
        if envelope.retry is None and self._retry is not None:
            # Every producer writes this header; without a choice of its own, it writes the default of the
            # specification.
            said = (delivery.properties.headers or {}).get(MAX_ATTEMPTS)
            chosen = isinstance(said, int) and said >= 0 and said != DEFAULT_RETRY.max_attempts
            envelope.retry = msgspec.structs.replace(self._retry, max_attempts=said) if chosen else self._retry
            envelope.max_attempts = envelope.retry.max_attempts
        if not envelope.timeout and not envelope.timeout_ms:
            envelope.timeout, envelope.timeout_ms = self._timeout
        if not envelope.visibility_timeout and not envelope.visibility_timeout_ms:
            envelope.visibility_timeout, envelope.visibility_timeout_ms = self._visibility
        envelope.priority = envelope.priority or self._priority
        if envelope.result_ttl is None:
            envelope.result_ttl = self._result_ttl
        if envelope.result_size_limit is None:
            envelope.result_size_limit = self._result_size_limit


def defaults_of(handlers: Mapping[str, AnyHandler]) -> dict[str, HandlerDefaults]:
    """Return the defaults of the handlers that have some, by type."""
    found = {kind: HandlerDefaults(handler) for kind, handler in handlers.items()}
    return {kind: defaults for kind, defaults in found.items() if defaults}


def with_policy(body: bytes, envelope: Envelope) -> bytes:
    """Return the body of a job with its effective policy, for programs that do not know its handler."""
    return body if envelope.retry is None or b'"retry"' in body else edit_envelope(body, {"retry": envelope.retry})
