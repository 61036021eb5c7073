"""What every test can use, and the rule on skipping.

On a developer's machine a test may skip and say what to install; with CI=true nothing may.
"""

import functools
import gc
import hashlib
import os
import signal
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.rabbitmq import rabbitmq
from tests.served_brokers import events_of_one_module, rabbitmq_uri, waybill_uri
from waybill.cli.main import build_kind

__all__ = ["events_of_one_module", "rabbitmq", "rabbitmq_uri", "waybill_uri"]

# A shell that starts the suite in the background has it ignored, and so would each program that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

NO_SKIPS: Final = os.environ.get("CI") == "true"
SPARK_TESTS: Final = ("tests/pipeline/",)
SPARK_PROGRAMS: Final = ("tests/demo/", "tests/cli/test_pipeline.py")
"""They start Spark in processes of their own."""
LONG_TESTS: Final = (
    *SPARK_TESTS,
    *SPARK_PROGRAMS,
    "tests/soak/",
    "tests/docs/",
    "tests/ojs/worker/",
    "tests/simulation/",
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped test into a failed one where nothing may skip."""
    report = yield
    if NO_SKIPS and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} ({call.when}): CI=true allows no skipped test: {reason}"
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests that need the plain source to the run that has it; begin with what takes longest."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG_TESTS))
    if build_kind() == "compiled":
        impossible = [item for item in items if item.get_closest_marker("plain_source") is not None]
        config.hook.pytest_deselected(items=impossible)
        items[:] = [item for item in items if item not in impossible]


def pytest_collection_finish() -> None:
    """Keep what was collected, half a million objects, from each collection of garbage that a test asks for."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole module that skips while it is collected."""
    report = yield
    if NO_SKIPS and report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid}: CI=true allows no skipped module: {reason}"
    return report


class SparkTogether(LoadFileScheduling):  # type: ignore[misc]
    """Each file whole on one worker, and those that use Spark on two: more at a time would starve each other."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SPARK_PROGRAMS):
            return "spark programs"
        return "spark" if nodeid.startswith(SPARK_TESTS) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SparkTogether | None:
    """Say which worker runs which test, where `--dist loadfile` asks for files."""
    return SparkTogether(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def hashed_once() -> Generator[None]:
    """Compute the hash of a password and a salt once: it is slow on purpose, and thousands of tests start a broker."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("scrypt", "pbkdf2_hmac"):
            patch.setattr(hashlib, name, functools.lru_cache(getattr(hashlib, name)))
        yield


@pytest.fixture
def free_port() -> int:
    """A TCP port of the loopback interface on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture(scope="session")
def repository() -> Path:
    """The directory of the repository."""
    return Path(__file__).resolve().parent.parent
