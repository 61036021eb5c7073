"""The child of a process pool: one process, one job at a time.

It ends when its worker closes the pipe, or dies. It ignores signals that a terminal or a service manager sends to the
whole group. SIGUSR1 from the worker ends the current job with JobCancelled, and SIGKILL ends the process.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import logging.handlers
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

from waybill.client import BasicProperties
from waybill.ojs.codec.arguments import Arguments, hints_of
from waybill.ojs.codec.forms import CustomTypes
from waybill.ojs.errors import JobCancelled
from waybill.ojs.handler import Handler
from waybill.ojs.job_context import JobContext, Reporter, current
from waybill.ojs.resources import ProcessResources
from waybill.ojs.topology.topology import Topology
from waybill.ojs.worker.process_messages import (
    Answer,
    Begun,
    FunctionPath,
    JobRequest,
    Logged,
    ProgressReport,
    SavedCheckpoint,
    raised,
    returned,
)

STOP: Final = signal.SIGUSR1
PROGRESS_SECONDS: Final = 0.2
OUT_OF_MEMORY_SCORE: Final = 500
"""When memory runs out, the kernel should kill this process rather than the worker."""

_log = logging.getLogger("waybill.ojs.worker")


class _Origin:
    """The message that contained the job."""

    def __init__(self, encoded_properties: bytes) -> None:
        self._encoded = encoded_properties

    @functools.cached_property
    def properties(self) -> BasicProperties:
        return BasicProperties.decode(self._encoded)


class _Line(Reporter):
    """The pipe to the worker, usable from any thread; a job is never stopped in the middle of a message."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._main = threading.get_ident()
        self._told_at = float("-inf")
        self.job: JobContext | None = None
        self._is_sending = False
        self._stop_waits = False

    def send(self, message: object) -> None:
        if threading.get_ident() != self._main:
            with self._lock:
                self._connection.send(message)
            return
        with self._lock:
            self._is_sending = True
            try:
                self._connection.send(message)
            finally:
                self._is_sending = False
        if self._stop_waits:
            self._stop_waits = False
            self.stop()

    def stop(self) -> None:
        """End the current job, if any. Called by the signal, between two instructions of the main thread."""
        job = self.job
        if job is None:
            return
        if self._is_sending:
            self._stop_waits = True
        elif not job.is_cancelled:
            job.cancel()
            raise JobCancelled(job.id)

    def progress(self, job: JobContext) -> None:
        now = time.monotonic()
        if now - self._told_at >= PROGRESS_SECONDS:
            self._told_at = now
            self.send(ProgressReport(job.progress_percent, job.progress_message))

    def checkpoint(self, job: JobContext) -> None:
        if job.new_checkpoint is not None:
            self.send(SavedCheckpoint(job.new_checkpoint))

    def last_word(self, job: JobContext) -> None:
        """Send progress that came too soon after the previous report."""
        self._told_at = float("-inf")
        if job.progress_percent is not None:
            self.send(ProgressReport(job.progress_percent, job.progress_message))


class _LineHandler(logging.handlers.QueueHandler):
    """Sends log records to the worker, whose handlers process them."""

    def __init__(self, line: _Line) -> None:
        super().__init__(queue.SimpleQueue())  # Only `enqueue` would use it
        self._line = line

    def enqueue(self, record: logging.LogRecord) -> None:
        self._line.send(Logged(pickle.dumps(record)))


def serve(connection: Connection, log_level: int, uri: str, topology: Topology) -> None:
    """Run the jobs that arrive over the pipe until it is closed. Jobs that they push go to their worker's broker."""
    line = _Line(connection)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(STOP, lambda _number, _frame: line.stop())
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OUT_OF_MEMORY_SCORE), encoding="ascii")
    logging.root.addHandler(_LineHandler(line))
    logging.root.setLevel(log_level)
    threading.Thread(target=_end_with_worker, name="waybill-watch", daemon=True).start()
    with contextlib.suppress(EOFError, OSError), ProcessResources() as resources:
        while True:
            call = connection.recv()
            line.send(Begun())
            answer = _answer(line, resources, call, (uri, topology))
            line.send(answer)


def _end_with_worker() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _answer(line: _Line, resources: ProcessResources, call: JobRequest, broker: tuple[str, Topology]) -> Answer:
    job = JobContext(call.envelope, call.queue, call.attempt, call.worker_id, _Origin(call.encoded_properties), line)
    token = current.set(job)
    answer: Answer
    try:
        function, arguments = _find(call.function, broker)
        invoke = arguments.caller(resources.bind(function))
        try:
            line.job = job
            result = invoke(call.envelope.args)
        finally:
            line.job = None
        line.last_word(job)
        answer = done = returned(result)
        if done.result is None:
            _log.error("the result of job %s (%s) cannot be pickled", job.id, job.type)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the worker is told
        line.last_word(job)
        answer = raised(error)
    finally:
        current.reset(token)
    return answer


@functools.cache
def _find(path: FunctionPath, broker: tuple[str, Topology]) -> tuple[Callable[..., object], Arguments]:
    """Return the handler's function and its arguments; jobs that it pushes go to `broker`.

    Raises ImportError, AttributeError, TypeError.
    """
    module = import_module(path.module)
    found: object = module
    for part in path.name.split("."):
        found = getattr(found, part)
    if isinstance(found, Handler):
        found.connect_to(*broker)
        return found.function, found.arguments
    if not callable(found):
        raise TypeError(f"{path.module}.{path.name} is not a handler")
    # It became a handler under another name.
    handlers = [one for one in vars(module).values() if isinstance(one, Handler) and one.function is found]
    if handlers:
        handlers[0].connect_to(*broker)
        return found, handlers[0].arguments
    return found, Arguments(path.name, found, hints_of(found), CustomTypes())
