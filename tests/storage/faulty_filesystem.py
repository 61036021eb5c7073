"""Disks that do not do what they are told: each is a bug that a store could have, planted between store and disk."""

from waybill.storage.filesystem import File, Filesystem
from waybill.testing.simulated_disk import SimulatedDisk

SEGMENT_BYTES = 1000


class FaultyFile:
    """A file that asks its filesystem whether a sync is to be done."""

    def __init__(self, file: File, owner: "FaultyFilesystem", name: str, *, is_new: bool) -> None:
        self.file = file
        self.owner = owner
        self.name = name
        self.is_new = is_new

    def append(self, *pieces: bytes) -> None:
        self.file.append(*pieces)

    def reserve(self, size: int) -> None:
        self.file.reserve(size)

    def read(self, offset: int, size: int) -> bytes:
        return self.file.read(offset, size)

    def sync(self) -> None:
        if self.owner.syncs(self):
            self.file.sync()

    def truncate(self, size: int) -> None:
        self.file.truncate(size)

    def size(self) -> int:
        return self.file.size()

    def close(self) -> None:
        self.file.close()


class FaultyFilesystem:
    """Passes everything on; the planted bugs override what they break."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk: Filesystem = disk

    def syncs(self, file: FaultyFile) -> bool:
        return True

    def create(self, name: str) -> File:
        return FaultyFile(self.disk.create(name), self, name, is_new=True)

    def open(self, name: str) -> File:
        return FaultyFile(self.disk.open(name), self, name, is_new=False)

    def list_directory(self, name: str) -> list[str]:
        return self.disk.list_directory(name)

    def make_directory(self, name: str) -> None:
        self.disk.make_directory(name)

    def remove(self, name: str) -> None:
        self.disk.remove(name)

    def rename(self, name: str, new_name: str) -> None:
        self.disk.rename(name, new_name)

    def sync_directory(self, name: str) -> None:
        self.disk.sync_directory(name)

    def free_space(self) -> int:
        return self.disk.free_space()


class ConfirmsBeforeSync(FaultyFilesystem):
    def syncs(self, file: FaultyFile) -> bool:
        return False


class SyncsNoDirectory(FaultyFilesystem):
    def sync_directory(self, name: str) -> None:
        pass


class RollsWithoutSync(FaultyFilesystem):
    def syncs(self, file: FaultyFile) -> bool:
        return not file.name.startswith("messages/") or file.size() < SEGMENT_BYTES


class SyncsNothingAfterRecovery(FaultyFilesystem):
    def syncs(self, file: FaultyFile) -> bool:
        return file.is_new
