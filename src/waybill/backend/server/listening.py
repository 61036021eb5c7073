"""The socket that a server listens on, and the URL that it has then."""

from __future__ import annotations

import socket


def listen(host: str, port: int, *, is_secure: bool) -> tuple[socket.socket, str]:
    """Return a listening socket and its URL, with the port that it got if `port` is 0. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family)
    shown = f"[{host}]" if family == socket.AF_INET6 else host
    return listening, f"{'https' if is_secure else 'http'}://{shown}:{listening.getsockname()[1]}"
