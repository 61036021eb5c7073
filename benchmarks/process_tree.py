"""Measures the peak memory, and the time on the CPU, of all processes that this one has started."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_INTERVAL_S: Final = 0.25
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/stat after the name: the parent, and the resident set in pages (proc(5)).
_PARENT: Final = 1
_RESIDENT: Final = 21
# User and system time, in ticks.
_TIMES: Final = (11, 12)
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class PeakMemory:
    """Samples new descendants on a thread. `bytes`: the largest sum of their resident sets.

    Shared memory counts once for each process, so the sum is an upper bound. `cpu_seconds` is their time on the CPU, as
    far as it was seen: the last quarter of a second of each may be missing.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._cpu: dict[int, float] = {}
        self._others = frozenset(_resident_of_descendants(os.getpid()))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def cpu_seconds(self) -> float:
        return sum(self._cpu.values())

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            resident = _resident_of_descendants(os.getpid())
            new = {process: size for process, size in resident.items() if process not in self._others}
            self.bytes = max(self.bytes, sum(new.values()))
            self._cpu |= {process: _seconds(fields) for process, fields in _stats() if process in new}


def cpu_seconds() -> float:
    """CPU time of this process and of all that it has started and that still run: what other work does not change."""
    parents, times = {}, {}
    for process, fields in _stats():
        parents[process] = int(fields[_PARENT])
        times[process] = _seconds(fields)
    own = os.getpid()
    return sum(time for process, time in times.items() if process == own or _descends(process, own, parents))


def cpu_seconds_of(process: int) -> float:
    """CPU time of one process."""
    return _seconds(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split())


def _seconds(fields: list[str]) -> float:
    return sum(int(fields[place]) for place in _TIMES) / _TICKS


def _stats() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended meanwhile.
        yield int(path.parent.name), fields


def _resident_of_descendants(root: int) -> dict[int, int]:
    """The resident sets by process, in bytes."""
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    for process, fields in _stats():
        parents[process] = int(fields[_PARENT])
        resident[process] = int(fields[_RESIDENT]) * _PAGE_BYTES
    return {process: size for process, size in resident.items() if _descends(process, root, parents)}


def _descends(process: int, root: int, parents: dict[int, int]) -> bool:
    parent = parents.get(process, 0)
    while parent > 1 and parent != root:
        parent = parents.get(parent, 0)
    return parent == root
