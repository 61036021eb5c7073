"""Buffers record batches: in memory while they are small, then in a temporary file.

A sink checks all rows of a partition before it sends the first one, and a partition may be larger than the memory. The
file is in the first of Spark's local directories (`SPARK_LOCAL_DIRS`), else in the directory for temporary files. It is
unnamed, so a killed task leaves no file.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Final, Self

import pyarrow as pa

MEMORY_BYTES: Final = 64 << 20
"""The maximum size in memory."""
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")


class NoRoomError(RuntimeError):
    """The rows of a partition do not fit in the temporary file."""


class BatchBuffer:
    """Batches of one schema, in their order. Raises NoRoomError."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._bytes = 0
        self._kept: list[pa.RecordBatch] = []
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.clear()
        if self._file is not None:
            self._file.close()

    @property
    def is_in_file(self) -> bool:
        return self._file is not None

    def add(self, batch: pa.RecordBatch) -> None:
        if self._file is None:
            self._kept.append(batch)
            self._bytes += batch.nbytes
            if self._bytes > self._memory_bytes:
                self._write(self._kept)
                self._kept.clear()
        else:
            self._write([batch])

    def through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Buffer each batch, and yield it."""
        for batch in batches:
            self.add(batch)
            yield batch

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """All batches. Nothing can be added afterwards."""
        if self._file is None:
            yield from self._kept
            return
        if self._writer is not None:
            with _explained():
                self._writer.close()
            self._writer = None
        with _explained():
            self._file.seek(0)
            reader = pa.ipc.open_stream(self._file)
        while (batch := _next(reader)) is not None:
            yield batch

    def _write(self, batches: list[pa.RecordBatch]) -> None:
        with _explained():
            if self._file is None:
                # Closed by `__exit__`.
                self._file = tempfile.TemporaryFile(prefix="waybill-rows-", dir=_directory())  # noqa: SIM115
                self._writer = pa.ipc.new_stream(self._file, batches[0].schema, options=_COMPRESSED)
            if self._writer is None:
                raise RuntimeError("batches were read already")
            for batch in batches:
                self._writer.write_batch(batch)


def _next(reader: pa.RecordBatchStreamReader) -> pa.RecordBatch | None:
    with _explained():
        try:
            return reader.read_next_batch()
        except StopIteration:
            return None


def _directory() -> str:
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0].strip() or tempfile.gettempdir()


@contextmanager
def _explained() -> Iterator[None]:
    """Turn an error of the file into one that says what to do."""
    try:
        yield
    except OSError as problem:
        raise NoRoomError(
            f"the rows of a partition do not fit in memory, and cannot be stored in {_directory()}: {problem}. "
            "Free disk space there, set spark.local.dir, or write more and smaller partitions."
        ) from None
