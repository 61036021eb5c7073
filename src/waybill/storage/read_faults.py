"""What becomes of reads that fail while the store is in use. Nothing waits here: whoever asked comes again later.

A lack of descriptors or memory passes: it is waited for as long as it takes. Any other error of one place is tried
again a few times; then what is there counts as damaged, is reported and stepped over, and stays on the disk.
"""

from errno import EAGAIN, EINTR, EMFILE, ENFILE, ENOMEM
from typing import Final

from mypy_extensions import i64

from waybill.model.operator_log import OperatorLog

PASSING: Final = (EAGAIN, EINTR, EMFILE, ENFILE, ENOMEM)
TRIES_MAX: Final = 8
SUSPECT_TRIES_MAX: Final = 2  # of a place in a file of which another place was given up
PLACES_MAX: Final = 4096


class ReadFaults:
    """Counts failures by place. One for all files of a store."""

    def __init__(self) -> None:
        self.operator_log = OperatorLog()
        self._tries: dict[tuple[str, int], int] = {}
        self._suspects: set[str] = set()

    def is_final(self, name: str, place: i64, error: OSError) -> bool:
        """Note that a read of a place in a file has failed. True if nobody should try again."""
        key = (name, int(place))
        tries = self._tries.pop(key, 0) + 1
        if error.errno not in PASSING and tries >= (SUSPECT_TRIES_MAX if name in self._suspects else TRIES_MAX):
            self._suspects.add(name)
            return True
        if len(self._tries) >= PLACES_MAX:
            self._tries.clear()
        self._tries[key] = tries
        self.operator_log.warning(
            "a read failed", f"{name} at {place}: {error}. It is tried again, and its queue waits"
        )
        return False

    def damaged(self, name: str, place: i64, detail: str) -> None:
        """Tell the operator what is stepped over."""
        self.operator_log.error(
            "damage in the store",
            f"{name} at {place}: {detail}. It is stepped over and stays on the disk; see `waybill store check`",
        )
