"""Converts the client's errors to errors of the pipeline, with the broker's address, but without the password."""

from typing import Final

from waybill.client import ClientError, InvalidURI
from waybill.pipeline.named_options import address

BROKER_ERRORS: Final = (ClientError, InvalidURI, OSError)
"""The client's errors: the broker is unreachable or refuses, or the URI is invalid."""


def explained(doing: str, uri: str, problem: BaseException) -> str:
    """`cannot read stream 'orders' on host:5672/vhost: ...`, for `doing` up to the preposition."""
    text = str(problem) or type(problem).__name__
    if "@" in uri:
        text = text.replace(uri, "the URI")
    return f"{doing} {address(uri)}: {text}"
