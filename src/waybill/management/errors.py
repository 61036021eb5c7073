"""Refusals, as RabbitMQ's management words them."""

from __future__ import annotations

from typing import Final

from waybill.model.errors import AccessRefused, ModelError, NotFound, NotImplementedHere, ResourceLocked

NOT_FOUND: Final = "not_found"
REASONS: Final = {400: "bad_request", 401: "not_authorised", 404: "Object Not Found", 405: "Method Not Allowed"}


class Refused(Exception):
    """A request that is not answered as it was meant."""

    def __init__(self, status: int, reason: str, error: str = "", headers: tuple[tuple[str, str], ...] = ()) -> None:
        """`error` is the short name of what is wrong; the status has a usual one."""
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.error = error or REASONS.get(status, "error")
        self.headers = headers


def bad_request(reason: str) -> Refused:
    """Say that the request makes no sense."""
    return Refused(400, reason)


def missing(name: str) -> Refused:
    """Say that a field of the body is missing."""
    return bad_request(f"[{{key_missing,{name}}}]")


def not_found() -> Refused:
    """Say that there is no such thing."""
    return Refused(404, "Not Found")


def not_authorised(reason: str) -> Refused:
    """Say that this user may not do this."""
    return Refused(401, reason)


def refused_by_model(error: ModelError) -> Refused:
    """Say in RabbitMQ's words why the broker has refused a change."""
    if isinstance(error, AccessRefused):
        return not_authorised(f"ACCESS_REFUSED - {error}")
    if isinstance(error, NotFound):
        return Refused(404, str(error), NOT_FOUND)
    return bad_request(str(error))


def refused_by_channel(error: ModelError) -> Refused:
    """Say what RabbitMQ says when publishing or getting fails: with the code that AMQP 0-9-1 has for it."""
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
