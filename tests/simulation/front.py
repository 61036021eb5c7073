"""What stands between the journal and the simulated disk, and plants bugs.

A planted bug is a store that forgets something. It is made here, by not passing on what the real store asks for, so
that nothing in the product knows of it. The simulation proves itself by finding each of them.
"""

from dataclasses import dataclass, replace
from typing import Final

from mypy_extensions import i64

from waybill.testing.simulated_disk import SimulatedDisk, SimulatedFile

SEGMENTS: Final = "messages/"
STREAMS: Final = "streams/"
CUT_BYTES: Final = 200


@dataclass(frozen=True)
class Plants:
    """Bugs to plant.

    `confirm_before_sync`: a sync is done after the commit that asked for it was reported. `no_checksum`: every
    checksum fits. `no_directory_sync`: none is done. `roll_without_sync`: a segment is not synced once it is full.
    `no_sync_after_recovery`: what recovery read is not synced. `stream_cut_short`: the end of a stream is lost when it
    is opened again.
    """

    confirm_before_sync: bool = False
    no_checksum: bool = False
    no_directory_sync: bool = False
    roll_without_sync: bool = False
    no_sync_after_recovery: bool = False
    stream_cut_short: bool = False

    @staticmethod
    def only(name: str) -> "Plants":
        return replace(Plants(), **{name: True})


class Front:
    """The simulated disk as the store is given it."""

    def __init__(self, disk: SimulatedDisk, plants: Plants, segment_bytes: int) -> None:
        self.disk = disk
        self.segment_bytes = segment_bytes
        self.plants = plants
        self.is_recovering = True
        self.late_syncs: list[SimulatedFile] = []

    def create(self, name: str) -> "FrontFile":
        return FrontFile(self, name, self.disk.create(name))

    def open(self, name: str) -> "FrontFile":
        file = self.disk.open(name)
        if self.plants.stream_cut_short and name.startswith(STREAMS):
            file.truncate(max(file.size() - CUT_BYTES, 0))
        return FrontFile(self, name, file)

    def list_directory(self, name: str) -> list[str]:
        return self.disk.list_directory(name)

    def make_directory(self, name: str) -> None:
        self.disk.make_directory(name)

    def remove(self, name: str) -> None:
        self.disk.remove(name)

    def rename(self, name: str, new_name: str) -> None:
        self.disk.rename(name, new_name)

    def sync_directory(self, name: str) -> None:
        plants = self.plants
        if plants.no_directory_sync or (plants.no_sync_after_recovery and self.is_recovering):
            return
        self.disk.sync_directory(name)

    def free_space(self) -> i64:
        return self.disk.free_space()

    def sync_file(self, name: str, file: SimulatedFile) -> None:
        """Pass a sync on, unless a planted bug forgets it."""
        plants = self.plants
        if plants.no_sync_after_recovery and self.is_recovering:
            return
        if plants.roll_without_sync and name.startswith(SEGMENTS) and file.size() >= self.segment_bytes:
            return
        if plants.confirm_before_sync:
            late, self.late_syncs = self.late_syncs, [file]
            for other in late:
                if other is not file:
                    other.sync()
            return
        file.sync()


class FrontFile:
    """A file behind a `Front`."""

    def __init__(self, front: Front, name: str, file: SimulatedFile) -> None:
        self.front = front
        self.name = name
        self.file = file

    def append(self, *pieces: bytes) -> None:
        self.file.append(*pieces)

    def reserve(self, size: i64) -> None:
        self.file.reserve(size)

    def read(self, offset: i64, size: i64) -> bytes:
        return self.file.read(offset, size)

    def sync(self) -> None:
        self.front.sync_file(self.name, self.file)

    def truncate(self, size: i64) -> None:
        self.file.truncate(size)

    def size(self) -> i64:
        return self.file.size()

    def close(self) -> None:
        if self.file in self.front.late_syncs:
            self.front.late_syncs.remove(self.file)
            self.file.sync()
        self.file.close()
