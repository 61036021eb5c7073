"""Lists of the files of a table, by which a lost or truncated one is noticed: else its rows would just not be counted.

A directory of Parquet files does not tell how many there should be, and Spark skips empty ones. So `_files`, which
readers of Parquet ignore, has their names and sizes: a line for each batch that was added, or one for all files. The
last line of a batch counts. Directories of earlier versions have no list, and are not checked.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from waybill.pipeline.parquet_files import REPAIRED, DamagedFileError

LIST: Final = "_files"
_MONTHS: Final = "month=*"


class _Line(msgspec.Struct):
    files: dict[str, int]
    batch: int = -1


_decoder: Final = msgspec.json.Decoder(_Line)


def add_batch(root: Path, batch: int, files: Iterable[Path]) -> None:
    """Add the files of a batch to the list of `root`; they replace those of an earlier attempt."""
    with (root / LIST).open("ab") as lines:
        # A line that was cut off must not spoil this one.
        lines.write(b"\n" + _line(root, files, batch))


def write_list(root: Path, batches: Mapping[int, Iterable[Path]]) -> None:
    """Write the list of a directory that has the files of these batches, and no others."""
    (root / LIST).write_bytes(b"".join(_line(root, files, batch) for batch, files in batches.items()))


def list_all(root: Path) -> None:
    """Write the list of a directory without batches, which has all its files."""
    write_list(root, {-1: root.glob("*.parquet")})


def check_list(root: Path, is_wanted: Callable[[int], bool] = lambda _: True) -> None:
    """Raise DamagedFileError if a listed file of `root`, or of a month in it, is missing or has another size.

    `is_wanted` tells which batches to check: another may be written at this time.
    """
    for place in (root, *root.glob(_MONTHS)):
        if not place.is_dir():
            raise DamagedFileError(f"{place} is lost; {REPAIRED}")
        for batch, files in _by_batch(place).items():
            if is_wanted(batch):
                _check(str(place), files)


def check_sizes(files: Iterable[tuple[str, int]]) -> None:
    """Raise DamagedFileError if one of these local files is missing or has another size."""
    for name, size in files:
        try:
            found = os.stat(name).st_size  # noqa: PTH116 - paths of all files would cost more than asking for them
        except FileNotFoundError:
            raise DamagedFileError(f"{name} is lost; {REPAIRED}") from None
        if found != size:
            raise DamagedFileError(f"{name} has {found:,} bytes, and was written with {size:,}; {REPAIRED}")


def _check(root: str, files: dict[str, int]) -> None:
    check_sizes((f"{root}/{name}", size) for name, size in files.items())


def _by_batch(root: Path) -> dict[int, dict[str, int]]:
    """The lists of the batches of a directory; none if it has no list."""
    found = {}
    try:
        lines = (root / LIST).read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    for text in lines:
        try:
            line = _decoder.decode(text)
        except ValueError:
            # Cut off by a crash, or being written: Spark writes that batch again.
            continue
        found[line.batch] = line.files
    return found


def _line(root: Path, files: Iterable[Path], batch: int) -> bytes:
    sizes = {str(file.relative_to(root)): file.stat().st_size for file in sorted(files)}
    return msgspec.json.encode(_Line(sizes, batch)) + b"\n"
