"""The codec for tools without keys: encode and decode payloads (ojs-encryption section 9)."""

from __future__ import annotations

from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.errors import RequestRefused
from waybill.backend.message import Request, Response, answer
from waybill.backend.router import ADMIN, Route

BASES: Final = ("/codec", "/ojs/v1/codec")
MOST_PAYLOADS: Final = 1000


class CodecRoutes:
    """The routes for payloads."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            route
            for base in BASES
            for route in (
                Route("POST", f"{base}/encode", self._encode, ADMIN),
                Route("POST", f"{base}/decode", self._decode, ADMIN),
            )
        ]

    async def _encode(self, request: Request) -> Response:
        return self._each(request, is_decoding=False)

    async def _decode(self, request: Request) -> Response:
        return self._each(request, is_decoding=True)

    def _each(self, request: Request, *, is_decoding: bool) -> Response:
        codec = self._backend.codec
        if codec is None:
            text = "This server has no encryption keys."
            raise RequestRefused("unsupported", text, hint="Start the server with --codec-keys.")
        if not request.actor:
            # The specification requires authentication (section 9.3).
            raise RequestRefused("permission_denied", "The codec requires an API key.")
        payloads = request.json(required=True).get("payloads")
        if not isinstance(payloads, list) or len(payloads) > MOST_PAYLOADS:
            details: dict[str, object] = {"field": "payloads"}
            text = f"payloads: must be an array of at most {MOST_PAYLOADS} payloads."
            raise RequestRefused("invalid_request", text, details=details)
        change = codec.decode if is_decoding else codec.encode
        return answer({"payloads": [change(one, f"payloads[{index}]") for index, one in enumerate(payloads)]})
