"""`waybill worker` as a child process of a server: restarted when the program changes, drained at shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from waybill.cli.echo import echo
from waybill.cli.end_with_parent import EXTRA_SECONDS
from waybill.cli.reload import DEBOUNCE_MS
from waybill.ojs.push.publisher import DESCRIBE_VARIABLE

if TYPE_CHECKING:
    from watchfiles.main import FileChange


def can_reload() -> bool:
    """Whether file changes can be watched."""
    try:
        import watchfiles  # noqa: F401 - only checks that it is installed
    except ImportError:
        return False
    return True


class WorkerProcess:
    """Runs `waybill worker` until it is told to stop."""

    def __init__(self, arguments: Sequence[str], standard_input: str, grace_seconds: float, *, reloads: bool) -> None:
        """`standard_input` is written to the standard input of the worker.

        `reloads`: the worker restarts when a Python file below the current directory changes.
        """
        self._arguments = arguments
        self._standard_input = standard_input.encode()
        self._grace_seconds = grace_seconds
        self._reloads = reloads
        self._process: Process | None = None

    async def run(self, stopping: asyncio.Event) -> int:
        """Run until `stopping` is set; returns the exit code of a worker that has failed, else 0.

        With reload, a worker that has failed restarts after the next change, which may fix it.
        """
        changes = _changes(stopping) if self._reloads else None
        stopped = asyncio.ensure_future(stopping.wait())
        changed = None if changes is None else asyncio.ensure_future(anext(changes, None))
        try:
            await self._start()
            while True:
                ended = asyncio.ensure_future(self._ended())
                waiting = {one for one in (stopped, changed, ended) if one is not None and not one.done()}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if not ended.done():
                    ended.cancel()
                elif not stopped.done():
                    if changed is None and ended.result():
                        return ended.result()
                    if changed is None:
                        echo("the worker was told to stop; Ctrl-C stops the rest", err=True)
                        await stopped
                        return 0
                    echo("the worker has stopped; it restarts when a file changes", err=True)
                    await asyncio.wait({stopped, changed}, return_when=asyncio.FIRST_COMPLETED)
                if stopped.done() or changed is None or changes is None:
                    return 0
                found = changed.result()
                if found is None:
                    return 0
                echo(f"{len(found)} files changed, restarting the worker", err=True)
                await self.stop()
                changed = asyncio.ensure_future(anext(changes, None))
                await self._start()
        finally:
            for task in (stopped, changed):
                if task is not None:
                    task.cancel()
            await self.stop()

    async def stop(self) -> None:
        """Let the worker finish its jobs, then stop it."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._grace_seconds + EXTRA_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _start(self) -> None:
        # In its own session, Ctrl-C reaches only the server, which stops the worker before the broker. The worker
        # also stops when its input is closed, which a kill of this process does.
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "waybill", "worker", *self._arguments, "--with-parent"),
            stdin=PIPE,
            start_new_session=True,
            # The dashboard shows the arguments of jobs pushed by handlers, unless the user says otherwise.
            env={DESCRIBE_VARIABLE: "1"} | os.environ,
        )
        if self._process.stdin is not None:
            # It stays open: the worker stops when it is closed.
            self._process.stdin.write(self._standard_input)

    async def _ended(self) -> int:
        if self._process is None:
            return 0
        return await self._process.wait()


async def _changes(stopping: asyncio.Event) -> AsyncIterator[set[FileChange]]:
    from watchfiles import PythonFilter, awatch

    async for found in awatch(".", watch_filter=PythonFilter(), debounce=DEBOUNCE_MS, stop_event=stopping):
        yield found
