"""Handles failed reads while the store is in use. Nothing blocks here: the reader tries again later.

A lack of descriptors or memory is temporary: the read is retried for as long as it takes. A read that fails with any
other error is retried a few times. Then its place counts as damaged: it is reported, skipped, and stays on the disk.
"""

from errno import EAGAIN, EINTR, EMFILE, ENFILE, ENOMEM
from typing import Final

from mypy_extensions import i64

from waybill.model.operator_log import OperatorLog

PASSING: Final = (EAGAIN, EINTR, EMFILE, ENFILE, ENOMEM)
TRIES_MAX: Final = 8
SUSPECT_TRIES_MAX: Final = 2  # of a place in a file that has another damaged place
PLACES_MAX: Final = 4096


class ReadFaults:
    """Counts failures by place. One for all files of a store."""

    def __init__(self) -> None:
        self.operator_log = OperatorLog()
        self._tries: dict[tuple[str, int], int] = {}
        self._suspects: set[str] = set()

    def is_final(self, name: str, place: i64, error: OSError) -> bool:
        """Record a failed read. Returns True if it should not be retried."""
        key = (name, int(place))
        tries = self._tries.pop(key, 0) + 1
        if error.errno not in PASSING and tries >= (SUSPECT_TRIES_MAX if name in self._suspects else TRIES_MAX):
            self._suspects.add(name)
            return True
        if len(self._tries) >= PLACES_MAX:
            self._tries.clear()
        self._tries[key] = tries
        self.operator_log.warning(
            "a read failed", f"{name} at {place}: {error}. The queue waits until a retry succeeds"
        )
        return False

    def damaged(self, name: str, place: i64, detail: str) -> None:
        """Report damage that is skipped."""
        self.operator_log.error(
            "damage in the store",
            f"{name} at {place}: {detail}. It is skipped and stays on the disk; see `waybill store check`",
        )
