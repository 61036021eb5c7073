"""The control socket: how other processes of the same user ask a running broker to hold its files for a backup.

    {"do": "hold"}  ->  {"directory": "/var/lib/waybill/backup/3f..."}      or  {"error": "..."}

The directory has links to all files as they are durable at one moment, with the manifest of that moment, which says how
much of each file counts. Whatever the broker appends, replaces or removes meanwhile, these stay. They are released
when the connection ends, so a backup that is interrupted keeps nothing.
"""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from waybill.broker.log import logger
from waybill.node.backup import durable_files, write_manifest
from waybill.node.node import Node

SOCKET_NAME: Final = "control"
DIRECTORY_NAME: Final = "backup"
REQUEST_BYTES: Final = 4096
PATH_LIMIT: Final = 100
"""The name of a socket may have about this many octets; a longer one is reached by the descriptor of its directory."""


class Control:
    """Listens in the data directory `root`. `work` lets the node commit."""

    def __init__(self, node: Node, root: Path, work: Callable[[], None]) -> None:
        self._node = node
        self._root = root
        self._work = work
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Raises nothing: a broker without this serves its clients all the same."""
        try:
            shutil.rmtree(self._root / DIRECTORY_NAME, ignore_errors=True)
            (self._root / SOCKET_NAME).unlink(missing_ok=True)
            with socket_path(self._root) as path:
                mask = os.umask(0o177)
                try:
                    self._server = await asyncio.start_unix_server(self._serve, path, limit=REQUEST_BYTES)
                finally:
                    os.umask(mask)
        except (OSError, ValueError) as error:
            logger.warning("no backup can be made while this broker runs: %s/%s: %s", self._root, SOCKET_NAME, error)

    def close(self) -> None:
        """Release all that is held."""
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(OSError):
            (self._root / SOCKET_NAME).unlink(missing_ok=True)
        shutil.rmtree(self._root / DIRECTORY_NAME, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            try:
                await self._answer(reader, writer)
            finally:
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
        except ValueError:
            request = None
        if request != {"do": "hold"}:
            writer.write(b'{"error": "the request is not understood"}\n')
            await writer.drain()
            return
        held = self._root / DIRECTORY_NAME / os.urandom(8).hex()
        try:
            answer = await self._hold(held)
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
            if "error" not in answer:
                logger.info("backing up %s", held)
                await reader.read()
                logger.info("finished the backup of %s", held)
        finally:
            shutil.rmtree(held, ignore_errors=True)

    async def _hold(self, held: Path) -> dict[str, str]:
        """Link all files once everything so far is durable."""
        done: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

        def link() -> None:
            if done.done():
                return
            try:
                _link_all(self._root, held, durable_files(self._node))
            except OSError as error:
                done.set_result({"error": f"the files cannot be linked: {error}"})
            else:
                done.set_result({"directory": str(held.absolute())})

        write_manifest(self._node)
        self._node.when_durable(link)
        self._work()
        return await done


def _link_all(root: Path, held: Path, names: list[str]) -> None:
    held.mkdir(mode=0o700, parents=True)
    made = {held}
    for name in names:
        target = held / name
        if target.parent not in made:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            made.add(target.parent)
        with contextlib.suppress(FileNotFoundError):
            # A file that was lost before stays listed, so that the loss is not forgotten.
            os.link(root / name, target, follow_symlinks=False)


@contextlib.contextmanager
def socket_path(root: Path) -> Iterator[str]:
    """A path of the control socket of a data directory that is short enough for the system."""
    path = str((root / SOCKET_NAME).absolute())
    if len(os.fsencode(path)) < PATH_LIMIT:
        yield path
        return
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)
