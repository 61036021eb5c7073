"""For tests of programs that use Waybill, or AMQP 0-9-1 at all: a real broker, time, faults, assertions.

    from waybill.testing import TestBroker

With pytest: `pytest_plugins = ["waybill.testing.pytest_plugin"]` gives the fixture `waybill_broker`. The parts of
the simulator (`simulated_disk`, `simulated_network`, `virtual_clock`) are here too.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from waybill.testing.broker import TestBroker, until
    from waybill.testing.enqueued import EnqueuedJob

__all__ = ["EnqueuedJob", "TestBroker", "until"]

_HOMES: Final = {
    "EnqueuedJob": "waybill.testing.enqueued",
    "TestBroker": "waybill.testing.broker",
    "until": "waybill.testing.broker",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used: the simulator needs none of them."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
