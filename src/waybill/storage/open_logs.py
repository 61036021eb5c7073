"""Limits how many sealed log files are open: those that were read last.

A backlog of terabytes has thousands of segments, and the number of descriptors is limited. Files that a commit may
still write or sync stay open, because it does so on another thread. The others are opened again when they are read.
"""

from errno import EMFILE, ENFILE
from typing import Final

from mypy_extensions import i64

from waybill.storage.filesystem import File, Filesystem
from waybill.storage.log import LogFile

OPEN_LOGS_MAX: Final = 128


class OpenLogs:
    """At most `limit` sealed files are open at once; at least one."""

    def __init__(self, filesystem: Filesystem, limit: i64) -> None:
        self._filesystem = filesystem
        self._limit: i64 = max(limit, 1)
        # By name, least recently used first.
        self._sealed: dict[str, LogFile] = {}

    def seal(self, log: LogFile) -> None:
        """Add a file that will never be written or synced again."""
        log.is_sealed = True
        if log.file is not None:
            self._use(log)

    def file(self, log: LogFile) -> File:
        """The file of a log. Use it at once: the next call of any method may close it."""
        if log.is_sealed:
            if log.file is None:
                log.file = self._open(log.name)
            self._use(log)
        return log.opened()

    def close(self, log: LogFile) -> None:
        """Close a log that is removed."""
        self._sealed.pop(log.name, None)
        log.close()

    def _open(self, name: str) -> File:
        try:
            return self._filesystem.open(name)
        except OSError as error:
            if error.errno not in (EMFILE, ENFILE) or not self._sealed:
                raise
        # No descriptor is free: close one of our own.
        self._sealed.pop(next(iter(self._sealed))).close()
        return self._filesystem.open(name)

    def _use(self, log: LogFile) -> None:
        sealed = self._sealed
        sealed.pop(log.name, None)
        sealed[log.name] = log
        if len(sealed) > self._limit:
            oldest = next(iter(sealed))
            sealed.pop(oldest).close()
