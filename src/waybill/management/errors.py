"""Errors, with the messages of RabbitMQ's management API."""

from __future__ import annotations

from typing import Final

from waybill.model.errors import AccessRefused, ModelError, NotFound, NotImplementedHere, ResourceLocked

NOT_FOUND: Final = "not_found"
REASONS: Final = {400: "bad_request", 401: "not_authorised", 404: "Object Not Found", 405: "Method Not Allowed"}


class Refused(Exception):
    """A request that is refused."""

    def __init__(self, status: int, reason: str, error: str = "", headers: tuple[tuple[str, str], ...] = ()) -> None:
        """`error` is the short name of the error; each status has a default."""
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.error = error or REASONS.get(status, "error")
        self.headers = headers


def bad_request(reason: str) -> Refused:
    """Return the error for an invalid request."""
    return Refused(400, reason)


def missing(name: str) -> Refused:
    """Return the error for a missing field."""
    return bad_request(f"[{{key_missing,{name}}}]")


def not_found() -> Refused:
    """Return the error for a missing object."""
    return Refused(404, "Not Found")


def not_authorised(reason: str) -> Refused:
    """Return the error for a user without permission."""
    return Refused(401, reason)


def refused_by_model(error: ModelError) -> Refused:
    """Return RabbitMQ's error for a change that the broker refused."""
    if isinstance(error, AccessRefused):
        return not_authorised(f"ACCESS_REFUSED - {error}")
    if isinstance(error, NotFound):
        return Refused(404, str(error), NOT_FOUND)
    return bad_request(str(error))


def refused_by_channel(error: ModelError) -> Refused:
    """Return RabbitMQ's error for a failed publish or get, with the AMQP 0-9-1 reply code."""
    if isinstance(error, AccessRefused):
        return refused_by_model(error)
    code = "406 PRECONDITION_FAILED"
    if isinstance(error, NotFound):
        code = "404 NOT_FOUND"
    elif isinstance(error, ResourceLocked):
        code = "405 RESOURCE_LOCKED"
    elif isinstance(error, NotImplementedHere):
        code = "540 NOT_IMPLEMENTED"
    return bad_request(f"{code} - {error}")
