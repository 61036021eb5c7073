"""The Open Job Spec over HTTP: an application, its routes, and the leases of the jobs that it gives out.

`app` is the ASGI application: see `asgi_app`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waybill.backend.asgi_app import BackendApp

    app: BackendApp

_made: dict[str, object] = {}


def __getattr__(name: str) -> object:
    """Make the application when it is first asked for: what needs none starts sooner."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _made:
        from waybill.backend.asgi_app import BackendApp  # noqa: PLC0415 - see above

        _made[name] = BackendApp()
    return _made[name]
