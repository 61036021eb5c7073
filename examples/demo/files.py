"""Which files become jobs."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SKIPPED_DIRECTORIES: Final = frozenset({"__pycache__", "site-packages", "dist-packages", "node_modules"})
MAX_FILES: Final = 4000
MAX_FILE_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class Selection:
    """The files that are taken, in order, and how many were left out for their size or because there are too many."""

    paths: list[Path]
    left_out: int


def select_files(directory: Path) -> Selection:
    """Return the regular files below `directory`: without caches, hidden and third-party directories.

    At most MAX_FILES of at most MAX_FILE_BYTES each; of too many, evenly spread ones.
    """
    found: list[Path] = []
    left_out = 0
    for path in _walk(directory):
        try:
            status = path.stat()
            path.as_posix().encode("utf-8")
        except (OSError, UnicodeEncodeError):
            continue
        if stat.S_ISREG(status.st_mode):
            if status.st_size <= MAX_FILE_BYTES:
                found.append(path)
            else:
                left_out += 1
    count = len(found)
    if count > MAX_FILES:
        found = [found[index * count // MAX_FILES] for index in range(MAX_FILES)]
    return Selection(found, left_out + count - len(found))


def _walk(directory: Path) -> Iterator[Path]:
    for root, directories, names in os.walk(directory):
        directories[:] = sorted(
            name for name in directories if name not in SKIPPED_DIRECTORIES and not name.startswith(".")
        )
        yield from (Path(root, name) for name in sorted(names))
