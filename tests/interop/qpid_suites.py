"""Run tests of Qpid's own suites for AMQP 0-10 against a broker: one line each, its name and `ok` or what went wrong.

    python -W ignore -m tests.interop.qpid_suites build/qpid 127.0.0.1:5672 tx queue endpoints.SessionTests

A process of its own: the client was written for Python 2, and warns of much. Arguments after the address are modules of
`qpid_tests.broker_0_10` or `qpid.tests.messaging`; a class and a test of them can be named.
"""

import importlib
import logging
import sys
import unittest
from collections.abc import Callable, Iterator
from typing import Any, Final

MESSAGING: Final = ("address", "endpoints", "message")
DEFINES: Final = {"qpid.recv_timeout": "2", "qpid.recv_timeout_negative": "0.2", "delay": "0.3", "timeout": "5"}
"""Seconds that tests wait for what must come, and for what must not."""


class Config:
    """What a test of Qpid's reads."""

    def __init__(self, address: str) -> None:
        from qpid.util import URL  # type: ignore[import-not-found]

        self.broker = URL(f"guest/guest@{address}")
        self.defines = DEFINES


def main(arguments: list[str]) -> int:
    directory, address, *wanted = arguments
    sys.path.insert(0, directory)
    logging.getLogger("qpid.messaging").setLevel(logging.CRITICAL)
    config = Config(address)
    for name, run in (one for pattern in wanted for one in tests(pattern, config)):
        try:
            run()
            print(name, "ok", flush=True)
        except Exception as error:  # noqa: BLE001 - it is what the test has found
            print(name, type(error).__name__, " ".join(str(error).split())[-700:], flush=True)
    return 0


def tests(pattern: str, config: Config) -> Iterator[tuple[str, Callable[[], None]]]:
    """The tests that a pattern names, ready to run."""
    module_name, _, rest = pattern.partition(".")
    class_name, _, test_name = rest.partition(".")
    package = "qpid.tests.messaging" if module_name in MESSAGING[:2] else "qpid_tests.broker_0_10"
    module = importlib.import_module(f"{package}.{module_name}")
    for name, cls in vars(module).items():
        if not isinstance(cls, type) or cls.__module__ != module.__name__ or class_name not in {"", name}:
            continue
        for method in sorted(vars(cls)):
            if method.startswith("test") and test_name in {"", method}:
                yield f"{module_name}.{name}.{method}", _runner(cls, method, config)


def _runner(cls: type[Any], method: str, config: Config) -> Callable[[], None]:
    one = cls(method)
    one.configure(config)
    set_up, tear_down = (one.setUp, one.tearDown) if isinstance(one, unittest.TestCase) else (one.setup, one.teardown)

    def run() -> None:
        set_up()
        try:
            getattr(one, method)()
        finally:
            tear_down()

    return run


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
