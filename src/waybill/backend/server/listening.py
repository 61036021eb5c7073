"""The listening socket of a server, and its URL."""

from __future__ import annotations

import socket


def listen(host: str, port: int, *, is_secure: bool) -> tuple[socket.socket, str]:
    """Return a listening socket and its URL. `port` 0 chooses a free port. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family)
    shown = f"[{host}]" if family == socket.AF_INET6 else host
    return listening, f"{'https' if is_secure else 'http'}://{shown}:{listening.getsockname()[1]}"
