"""The thread of a store, and a watchdog for databases that do not respond.

Connections to a server that hangs or was cut off stay open without replies. So after a long wait, connections are
closed: the call fails, and the next one connects again, to another host if there are several.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.errors import DatabaseUnusable

WARN_SECONDS: Final = 20.0
CUT_SECONDS: Final = 60.0
LAST_SECONDS: Final = 5.0
"""The same for a program that is about to end."""
POLL_SECONDS: Final = 1.0
LOG_AGAIN_SECONDS: Final = 30.0
READ_SECONDS: Final = 0.002
"""How long a read holds a store in memory before others may use it."""
PAUSE_SECONDS: Final = 0.0001

T = TypeVar("T")

_log = logging.getLogger("waybill.ojs.coordinator")


class StoreThread:
    """Runs calls of a store one after another, in a separate thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while a store in memory is in use: by its thread, or by the loop for quick calls."""
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="waybill-jobs")
        self._read_executor = self._executor
        self._read_until = 0.0
        self._began: float | None = None
        self._is_away = False
        """Whether the last call found that the database cannot be reached."""
        self._reading = asyncio.Lock()
        self._is_ending = False
        self._question: asyncio.Task[str | None] | None = None
        self._asked = 0.0

    @property
    def problem(self) -> str | None:
        """Return what keeps the last call from its result, None if nothing does: "unreachable" or "unresponsive"."""
        began = self._began
        if began is not None and time.monotonic() - began >= WARN_SECONDS:
            return "unresponsive"
        return "unreachable" if self._is_away else None

    async def ask(self, store: JobStore, seconds: float) -> str | None:
        """Ask a database whether it answers, beside its other calls. Return what keeps it from that, as `problem`.

        There is one question at a time, however many want to know.
        """
        if self._question is None or self._question.done():
            self._asked = time.monotonic()
            self._question = asyncio.create_task(asyncio.to_thread(self._answer_of, store))
        question = self._question
        await asyncio.wait({question}, timeout=seconds)
        return question.result() if question.done() else "unresponsive"

    def end_soon(self) -> None:
        """Wait less long for a database that does not answer, and ask one that is away nothing more."""
        self._is_ending = True

    async def close(self, store: JobStore) -> None:
        """Close the store after the calls so far, without an answer to a question."""
        if self._question is not None and not self._question.done():
            store.cut()
            await asyncio.wait({self._question})
        await asyncio.get_running_loop().run_in_executor(self._executor, store.close)

    async def read(self, call: Callable[[], T]) -> T:
        """Run a call for which others need not wait: only one of these at a time stands in line before other calls."""
        async with self._reading:
            return await asyncio.get_running_loop().run_in_executor(self._read_executor, self._locked, call)

    def make_way(self, store: JobStore) -> None:
        """Let long reads of a store in memory make way for others: they get a thread of their own, and pause."""
        if store.is_in_memory:
            self._read_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="waybill-reads")
            store.pause = self._pause

    def _pause(self) -> None:
        """Let others use the store for a moment, unless that was done just now."""
        if time.monotonic() < self._read_until:
            return
        self.lock.release()
        time.sleep(PAUSE_SECONDS)
        self.lock.acquire()
        self._read_until = time.monotonic() + READ_SECONDS

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._locked, call)

    def run_from_outside(self, call: Callable[[], T], seconds: float) -> T:
        """Do the same from any thread except that of the event loop: it blocks. Raises TimeoutError after `seconds`."""
        running = self._executor.submit(self._locked, call)
        try:
            return running.result(seconds)
        except TimeoutError:
            running.cancel()
            raise

    def shut_down(self) -> None:
        """Run nothing more."""
        self._executor.shutdown(wait=False)
        self._read_executor.shutdown(wait=False)

    async def watch(self, store: JobStore) -> None:
        """Warn when the store waits long, and close its connections when it waits too long; until cancelled."""
        warned: float | None = None
        while True:
            await asyncio.sleep(POLL_SECONDS)
            began = self._waits_since
            waited = 0.0 if began is None else time.monotonic() - began
            if waited >= (LAST_SECONDS if self._is_ending else CUT_SECONDS):
                _log.error("the job database has not answered for %.0f s: closing its connections", waited)
                store.cut()
            elif waited >= WARN_SECONDS and began != warned:
                warned = began
                _log.warning("the job database has not answered for %.0f s", waited)

    def _answer_of(self, store: JobStore) -> str | None:
        try:
            if store.ping():
                self._is_away = False
        except Exception:  # noqa: BLE001 - whatever a driver raises
            return "unreachable"
        return None

    @property
    def _waits_since(self) -> float | None:
        """When the oldest call without an answer began."""
        asked = None if self._question is None or self._question.done() else self._asked
        return min((one for one in (self._began, asked) if one is not None), default=None)

    def _locked(self, call: Callable[[], T]) -> T:
        with self.lock:
            if self._is_ending and self._is_away:
                raise DatabaseUnusable("the job database cannot be reached")
            self._began = time.monotonic()
            cause: str | None = None
            try:
                return call()
            except Exception as error:
                cause = _cause_of_absence(error)
                if cause is None:
                    raise
                raise DatabaseUnusable(f"the job database cannot be reached: {cause}") from error
            finally:
                self._began = None
                self._is_away = cause is not None


def _cause_of_absence(error: Exception) -> str | None:
    """Return why a database did not answer; None if it did, or is not remote."""
    # Import only if a database is used.
    exceptions = sys.modules.get("sqlalchemy.exc")
    if exceptions is None or not isinstance(error, (exceptions.OperationalError, exceptions.InterfaceError)):
        return None
    return first_line(error.__cause__ or error)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its class name if it has no text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class Outage:
    """Logs that a database cannot be written to, and when it can be again, without a line for each try."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._logged = 0.0

    @property
    def lasts(self) -> bool:
        """Whether the last try failed."""
        return self._began is not None

    def failed(self, error: Exception, again_seconds: float) -> None:
        """Note a failed try."""
        now = time.monotonic()
        if self._began is None:
            self._began = self._logged = now
            text = "the job state cannot be written, trying again every %g s; events wait in the stream"
            _log.error(text, again_seconds, exc_info=error)
        elif now - self._logged >= LOG_AGAIN_SECONDS:
            self._logged = now
            _log.error("the job state has not been written for %.0f s: %s", now - self._began, first_line(error))

    def over(self) -> None:
        """Note a successful try."""
        if self._began is not None:
            _log.warning("the job state is written again, after %.1f s", time.monotonic() - self._began)
            self._began = None
