"""The streams of one data directory: open ones, and those that no definition has claimed yet."""

from mypy_extensions import i64

from waybill.storage.filesystem import Filesystem
from waybill.storage.manifest import Extent, Manifest
from waybill.storage.open_logs import OpenLogs
from waybill.storage.read_faults import ReadFaults
from waybill.storage.record import RecordReader
from waybill.storage.report import RecoveryReport
from waybill.storage.stream import DiskStream
from waybill.storage.stream_segment import DIRECTORY, stream_ids


class StreamTable:
    """`in_use`: open streams by id. The next commit takes the appends of `busy`, and removes the files of `removed`."""

    def __init__(
        self,
        filesystem: Filesystem,
        open_logs: OpenLogs,
        records: RecordReader,
        faults: ReadFaults,
        report: RecoveryReport,
    ) -> None:
        self._filesystem = filesystem
        self._open_logs = open_logs
        self._records = records
        self._faults = faults
        self._report = report
        self.in_use: dict[int, DiskStream] = {}
        self.busy: list[DiskStream] = []
        self.removed: list[DiskStream] = []
        # Of unclaimed streams: names in the directory, and manifest entries, which are kept.
        self._names: dict[int, list[str]] = {}
        self._extents: dict[int, list[Extent]] = {}

    def recover(self, manifest: Manifest) -> i64:
        """Find all streams. Returns the highest of their ids."""
        filesystem = self._filesystem
        highest_id: i64 = 0
        for stream_id in stream_ids(filesystem):
            self._names[stream_id] = filesystem.list_directory(f"{DIRECTORY}/{stream_id}")
            highest_id = max(highest_id, stream_id)
        for extent in manifest.within(DIRECTORY):
            stream_id = int(extent.name.split("/")[1])
            self._extents.setdefault(stream_id, []).append(extent)
            highest_id = max(highest_id, stream_id)
        # As with messages: what was read must be durable before it is used. Perhaps the last process did not sync it.
        filesystem.sync_directory(DIRECTORY)
        return highest_id

    def stream(self, stream_id: i64, segment_bytes: i64) -> DiskStream:
        """The stream with an id. The first call recovers or creates it."""
        stream = self.in_use.get(stream_id)
        if stream is None:
            stream = DiskStream(
                self._filesystem, self._open_logs, self._records, stream_id, segment_bytes, self.busy, self._faults
            )
            names = self._names.pop(stream_id, None)
            extents = self._extents.pop(stream_id, [])
            if names is not None or extents:
                stream.recover(names, extents, self._report)
            self.in_use[stream_id] = stream
        return stream

    def remove(self, stream_id: i64) -> None:
        """Remove a stream; the next commit removes its files."""
        stream = self.stream(stream_id, 0)
        del self.in_use[stream_id]
        if stream.is_busy:
            self.busy.remove(stream)
        self.removed.append(stream)

    def unclaimed(self) -> list[int]:
        """The ids that no definition has claimed."""
        return sorted({*self._names, *self._extents})

    def manifest_entries(self) -> list[bytes]:
        """The manifest entries of all streams. A commit must have taken all appends."""
        entries: list[bytes] = []
        for stream in self.in_use.values():
            entries.extend(stream.extents())
        for extents in self._extents.values():
            entries.extend(extent.encoded() for extent in extents)
        return entries

    def pending_bytes(self) -> int:
        """Bytes that no commit has taken yet."""
        total = 0
        for stream in self.busy:
            total += stream.pending_bytes
        return total

    def close(self) -> None:
        for stream in self.in_use.values():
            stream.close()
