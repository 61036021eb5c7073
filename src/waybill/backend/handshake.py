"""The opening handshake of WebSockets (RFC 6455 section 4.2)."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Final

from waybill.backend.errors import RequestRefused
from waybill.backend.message import Request

SUBPROTOCOL: Final = "ojs.v1"
VERSION: Final = "13"
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_BYTES: Final = 16


def accept_headers(request: Request) -> list[tuple[str, str]]:
    """Return the headers of the answer to an opening handshake (RFC 6455 section 4.2). Raises RequestRefused."""
    headers = request.headers
    upgrades = [one.strip().lower() for one in headers.get("upgrade", "").split(",")]
    if request.method != "GET" or "websocket" not in upgrades:
        raise RequestRefused(
            "upgrade_required", "This path only serves WebSockets.", headers=[("Upgrade", "websocket")]
        )
    if headers.get("sec-websocket-version") != VERSION:
        raise RequestRefused(
            "upgrade_required",
            f"The version of the WebSocket must be {VERSION}.",
            headers=[("Upgrade", "websocket"), ("Sec-WebSocket-Version", VERSION)],
        )
    key = headers.get("sec-websocket-key", "")
    try:
        is_key = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        is_key = False
    if not is_key:
        raise RequestRefused("invalid_request", "Sec-WebSocket-Key must be 16 octets in base64.")
    accepted = base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()
    found = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accepted)]
    offered = [one.strip() for one in headers.get("sec-websocket-protocol", "").split(",")]
    return [*found, ("Sec-WebSocket-Protocol", SUBPROTOCOL)] if SUBPROTOCOL in offered else found
