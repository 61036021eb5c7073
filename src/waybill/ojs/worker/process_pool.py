"""Processes for CPU-bound handlers: started when first needed, one job at a time each, killed when a job has to stop.

    worker thread      send(JobRequest) ; recv() ... reports ... recv() -> Returned or Raised, or the pipe breaks
    child process           recv() ; the handler runs ........................ send(Returned or Raised)

Each process has its own pipe and thread, and shares nothing with the others: a process that is killed by the kernel, or
crashes, fails only its own job. The pool of the standard library would fail all jobs.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Final

from waybill.ojs.errors import ProcessLost
from waybill.ojs.handler import AnyHandler
from waybill.ojs.job_context import JobContext
from waybill.ojs.topology.topology import Topology
from waybill.ojs.worker.eager_task import in_thread
from waybill.ojs.worker.process_child import STOP, serve
from waybill.ojs.worker.process_messages import (
    Answer,
    FunctionPath,
    JobRequest,
    Logged,
    ProgressReport,
    Raised,
    Returned,
    SavedCheckpoint,
    result_of,
)

KILL_SECONDS: Final = 2.0
"""How long a job may take to stop after a cancellation."""
EXIT_SECONDS: Final = 5.0

_log = logging.getLogger("waybill.ojs.worker")


class _Child:
    """A process and the pipe to it."""

    def __init__(self, uri: str, topology: Topology) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, remote = context.Pipe()
        level = logging.getLogger().getEffectiveLevel()
        self._process = context.Process(target=serve, args=(remote, level, uri, topology), name="waybill-job")
        self._process.start()
        remote.close()
        self.is_doomed = False
        # A program that ends without closing its worker must not wait for the worker's processes.
        self._at_exit = Finalize(None, self._process.kill, exitpriority=1)

    @property
    def is_alive(self) -> bool:
        return not self.is_doomed and self._process.is_alive()

    def stop(self) -> None:
        """Cancel the current job."""
        if self._process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, STOP)

    def kill(self) -> None:
        self.is_doomed = True
        self._process.kill()

    def end(self) -> str:
        """Release the process, and return how it has ended."""
        self._at_exit.cancel()
        self.connection.close()
        self._process.join(EXIT_SECONDS)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        code = self._process.exitcode or 0
        self._process.close()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"has exited with code {code}"


class ProcessPool:
    """At most `size` processes. `run` passes a job to one of them."""

    def __init__(self, size: int, uri: str, topology: Topology) -> None:
        """Handlers there push with `uri` and `topology`. Processes start when needed."""
        self.size = size
        self._uri = uri
        self._topology = topology
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(max_workers=size, thread_name_prefix="waybill-process")
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._busy: dict[JobContext, _Child | None] = {}

    @property
    def has_room(self) -> bool:
        """Return whether a job would start immediately."""
        return len(self._busy) < self.size

    def run(self, handler: AnyHandler, job: JobContext) -> asyncio.Future[object]:
        """Run a job. The future raises errors of the handler, or ProcessLost if its process died.

        Cancelling the future, as a middleware with its own time limit does, stops the job.
        """
        function = handler.function
        path = FunctionPath(function.__module__, getattr(function, "__qualname__", ""))
        call = JobRequest(path, job.envelope, job.queue, job.attempt, job.worker_id, job.properties.encode())
        with self._lock:
            self._busy[job] = None
        # Log records of the child are handled in this thread, by handlers that read the job from its context.
        try:
            future = self._loop.run_in_executor(self._threads, in_thread, copy_context().run, self._do, job, call)
        except BaseException:
            with self._lock:
                del self._busy[job]
            raise
        future.add_done_callback(lambda done: self.stop(job) if done.cancelled() else None)
        return future

    def stop(self, job: JobContext) -> None:
        """Stop a job: JobCancelled is raised in its handler; if that does not help, its process is killed."""
        job.cancel()
        self._act(job, kill=False)
        self._loop.call_later(KILL_SECONDS, self._act, job, True)  # noqa: FBT003 - call_later takes no keywords

    def close(self) -> None:
        """Kill all processes; running jobs fail with ProcessLost."""
        with self._lock:
            busy = [child for child in self._busy.values() if child is not None]
            idle, self._idle = self._idle, []
        for child in busy:
            child.kill()
        for child in idle:
            child.connection.close()
        for child in idle:
            child.end()
        self._threads.shutdown(wait=not busy)

    def _act(self, job: JobContext, kill: bool) -> None:  # noqa: FBT001 - see `stop`
        with self._lock:
            child = self._busy.get(job)
            if child is not None:
                (child.kill if kill else child.stop)()

    # --- in a thread ---

    def _do(self, job: JobContext, call: JobRequest) -> object:
        child = None
        try:
            child = self._begin(job, call)
            answer = self._listen(job, child.connection)
        except (EOFError, OSError):
            with self._lock:
                self._busy.pop(job)
            how = "could not be started" if child is None else child.end()
            raise ProcessLost(f"the process of the job {how}") from None
        except BaseException:
            with self._lock:
                self._busy.pop(job)
            if child is not None:
                child.kill()
                child.end()
            raise
        with self._lock:
            self._busy.pop(job)
            is_kept = child.is_alive
            if is_kept:
                self._idle.append(child)
        if not is_kept:
            child.end()
        return result_of(answer)

    def _begin(self, job: JobContext, call: JobRequest) -> _Child:
        """Pass the job to a process that accepts it: an idle process that has died does not."""
        while True:
            with self._lock:
                child = self._idle.pop() if self._idle else None
            is_new = child is None
            child = child or _Child(self._uri, self._topology)
            with self._lock:
                self._busy[job] = child
            try:
                if job.is_cancelled:
                    # It was cancelled before it had a process.
                    child.stop()
                child.connection.send(call)
                child.connection.recv()
                return child
            except (EOFError, OSError):
                pass
            except BaseException:
                child.kill()
                child.end()
                raise
            with self._lock:
                self._busy[job] = None
            how = child.end()
            if is_new:
                raise ProcessLost(f"the process of the job {how} before it began")

    @staticmethod
    def _listen(job: JobContext, connection: Connection) -> Answer:
        while True:
            match connection.recv():
                case ProgressReport(percent, message):
                    job.progress(percent or 0.0, 100, message)
                case SavedCheckpoint(checkpoint):
                    job.keep(checkpoint)
                case Logged(packed):
                    _log_record(packed)
                case Returned() | Raised() as answer:
                    return answer


def _log_record(packed: bytes) -> None:
    """Log a child's log record. An invalid record is dropped: the job continues."""
    try:
        record = pickle.loads(packed)  # noqa: S301 - from our own child
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)
    except Exception:  # noqa: BLE001 - pickle and the handlers of a log run all kinds of code
        _log.warning("a log record of a process cannot be read", exc_info=True)
