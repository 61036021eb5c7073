"""Tools to test programs that use Waybill or any AMQP 0-9-1 client: a real broker, time, faults, assertions.

    from waybill.testing import TestBroker

Without a broker, `fake` records pushed jobs, and `inline` runs them immediately.

With pytest: `pytest_plugins = ["waybill.testing.pytest_plugin"]` gives fixtures for all three. The parts of
the simulator (`simulated_disk`, `simulated_network`, `virtual_clock`) are here too.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from waybill.testing.attempts import PushedJob
    from waybill.testing.broker import TestBroker, until
    from waybill.testing.enqueued import EnqueuedJob
    from waybill.testing.modes import fake, inline
    from waybill.testing.recorded_jobs import RecordedJobs

__all__ = ["EnqueuedJob", "PushedJob", "RecordedJobs", "TestBroker", "fake", "inline", "until"]

_HOMES: Final = {
    "EnqueuedJob": "waybill.testing.enqueued",
    "PushedJob": "waybill.testing.attempts",
    "RecordedJobs": "waybill.testing.recorded_jobs",
    "TestBroker": "waybill.testing.broker",
    "fake": "waybill.testing.modes",
    "inline": "waybill.testing.modes",
    "until": "waybill.testing.broker",
}


def __getattr__(name: str) -> object:
    """Load a public name on first use: the simulator needs none of these."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
