"""The Open Job Spec over HTTP: the application, its routes, and the leases of fetched jobs.

`app` is the ASGI application: see `asgi_app`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waybill.backend.asgi_app import BackendApp

    app: BackendApp

_made: dict[str, object] = {}


def __getattr__(name: str) -> object:
    """Make the application on first use: programs that do not need it start sooner."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _made:
        from waybill.backend.asgi_app import BackendApp  # noqa: PLC0415 - see above

        _made[name] = BackendApp()
    return _made[name]
