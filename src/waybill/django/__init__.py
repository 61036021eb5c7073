"""Jobs in a Django project: settings, discovery, transactions, an outbox, commands and an admin page.

    # settings.py
    INSTALLED_APPS = [..., "waybill.django"]
    WAYBILL = {"URL": "amqp://guest:guest@localhost:5672/%2Fojs"}

    # shop/jobs.py: modules called `jobs` of installed apps are imported automatically
    from waybill.django import jobs, on_commit

    @jobs.handler("user.welcome")
    def welcome(user_id: int) -> None: ...

    on_commit(welcome.job(user.pk))     # pushed when the transaction commits, if it does
    outbox.add(welcome.job(user.pk))    # written in the transaction, pushed by `manage.py waybill_outbox`

`manage.py waybill_worker` runs the jobs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from waybill.django import outbox
    from waybill.django.connection import jobs
    from waybill.django.transactions import on_commit

__all__ = ["jobs", "on_commit", "outbox"]

_MODULES: Final = {"jobs": "connection", "on_commit": "transactions"}


def __getattr__(name: str) -> object:
    """Load a public name on first use: Django imports this package before its settings are complete."""
    if name == "outbox":
        return import_module(f"{__name__}.outbox")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
