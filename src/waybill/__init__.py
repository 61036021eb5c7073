"""Waybill: a durable AMQP broker, Open Job Spec jobs and a PySpark pipeline.

    from waybill import Broker, Jobs, Retry, Worker, connect

The names are loaded when they are first used: a worker never imports the broker, nor a broker the jobs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from waybill.broker import Broker
    from waybill.client import connect
    from waybill.ojs import Jobs, Retry, Worker

__all__ = ["Broker", "Jobs", "Retry", "Worker", "__version__", "connect"]

__version__: Final = "0.1.0"

_HOMES: Final = {
    "Broker": "waybill.broker",
    "Jobs": "waybill.ojs",
    "Retry": "waybill.ojs",
    "Worker": "waybill.ojs",
    "connect": "waybill.client",
}


def __getattr__(name: str) -> object:
    """Load a public name from the package that defines it. Raises AttributeError for any other name."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value
