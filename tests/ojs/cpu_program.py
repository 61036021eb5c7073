"""Functions for the tests of processes: a child has to find them by name."""

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waybill.ojs import FailJob, current_job, resource

log = logging.getLogger("cpu.program")


class Picky(Exception):
    """Cannot be pickled: it is made of other arguments than it keeps."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def square(number: int) -> dict[str, object]:
    job = current_job()
    job.progress(1, 2, "half")
    log.warning("squaring %d", number)
    return {"square": number**2, "pid": os.getpid(), "traceparent": job.traceparent}


def fail(how: str) -> None:
    match how:
        case "value":
            raise ValueError("no such value")
        case "picky":
            raise Picky(1, 2)
        case "final":
            raise FailJob("never again", type="cpu.final")
        case "exit":
            sys.exit(3)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "gone":
            os._exit(7)


def odd() -> object:
    return lambda: None


def spin(path: str) -> None:
    Path(path).write_text(str(os.getpid()), encoding="ascii")
    while True:
        pass


def spin_and_tidy(path: str) -> None:
    try:
        spin(path)
    finally:
        Path(f"{path}.tidied").touch()


def stubborn(path: str) -> None:
    while True:
        try:
            spin(path)
        except Exception:
            log.exception("not yet")


def sleep_until(path: str) -> int:
    Path(f"{path}.begun").touch()
    while not Path(path).exists():
        time.sleep(0.01)
    return os.getpid()


def resume(path: str) -> object:
    job = current_job()
    if job.last_checkpoint is None:
        job.checkpoint({"page": 1})
        os.kill(os.getpid(), signal.SIGKILL)
    return job.last_checkpoint


@contextmanager
def tools() -> Iterator[list[int]]:
    yield [os.getpid()]


async def far_away() -> int:
    return 1


def with_tools(*, box: list[int] = resource(tools)) -> bool:
    return box == [os.getpid()]


def with_loop(*, number: int = resource(far_away)) -> int:
    return number
