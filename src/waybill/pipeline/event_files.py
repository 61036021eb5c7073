"""The files of bronze by batch, from which a refresh takes those that it has not folded."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from waybill.pipeline.listing import names_in, numbers_in
from waybill.pipeline.parquet_files import row_count

_FEW: Final = 50
_BATCH: Final = "batch_id="


@dataclass(frozen=True)
class EventFiles:
    """Files of bronze, up to a batch. `carried`: events of dropped days, which are folded and not counted.

    Files are paths, or URIs of files in a bucket: `s3a://bucket/events/bronze/events/data/...`.
    """

    batch: int
    events: tuple[str, ...]
    rows: int
    carried: tuple[str, ...] = ()


def grouped(batches: Iterator[EventFiles], rows_per_step: int) -> Iterator[EventFiles]:
    """Group whole batches up to a number of rows."""
    group: list[EventFiles] = []
    rows = 0
    for files in batches:
        if group and rows + files.rows > rows_per_step:
            yield _joined(group)
            group, rows = [], 0
        group.append(files)
        rows += files.rows
    if group:
        yield _joined(group)


def local_batches(root: Path, checkpoint: Path, after: int, complete: Collection[int]) -> Iterator[EventFiles]:
    """The batches below `root` after `after`, in order. Compacted ones have the number 0, and a step for each day.

    Spark records a batch before it writes it, and again when it is done. A batch in between may be incomplete, and is
    left out unless it is in `complete`.
    """
    left_out = doubtful(checkpoint, complete)
    days = sorted(path for path in root.iterdir() if path.name.startswith("date=")) if root.is_dir() else []
    numbers = _numbers(checkpoint, days, after)
    for number in sorted(numbers - left_out):
        places = [place for day in days if (place := day / f"batch_id={number}").is_dir()]
        if number > 0 or after >= 0:
            files = tuple(str(file) for place in places for file in sorted(place.glob("*.parquet")))
            if files:
                yield EventFiles(number, files, rows_of(files))
            continue
        for place in places:
            files = tuple(str(file) for file in sorted(place.glob("*.parquet")))
            yield EventFiles(number, files, rows_of(files))


def batch_of(name: str) -> int | None:
    """The batch of a directory of this name; None for other names."""
    number = name.removeprefix(_BATCH)
    return int(number) if name.startswith(_BATCH) and number.isascii() and number.isdigit() else None


def rows_of(files: Iterable[str]) -> int:
    """The rows of local files. Raises DamagedFileError."""
    return sum(map(row_count, files))


def doubtful(checkpoint: Path, complete: Collection[int] = ()) -> set[int]:
    """Batches that Spark has begun and not recorded as done, except `complete`."""
    return noted(checkpoint / "offsets") - noted(checkpoint / "commits") - set(complete)


def are_written(checkpoint: Path, complete: Collection[int] = ()) -> Callable[[int], bool]:
    """Tells which batches must have all their files: neither `doubtful` ones, nor those that Spark is yet to begin."""
    done = noted(checkpoint / "commits") | set(complete)
    open_batches = doubtful(checkpoint, complete)
    last = max(done, default=-1)
    return lambda batch: batch <= last and batch not in open_batches


def noted(place: Path) -> set[int]:
    """The batches in one of the logs of a checkpoint."""
    return set(numbers_in(place))


def _joined(group: list[EventFiles]) -> EventFiles:
    return EventFiles(
        max(files.batch for files in group),
        tuple(file for files in group for file in files.events),
        sum(files.rows for files in group),
        tuple(file for files in group for file in files.carried),
    )


def _numbers(checkpoint: Path, days: Iterable[Path], after: int) -> set[int]:
    """The numbers of the batches after `after`: from Spark's records if these are few, else from all days."""
    known = noted(checkpoint / "offsets") | noted(checkpoint / "commits")
    last = max(known, default=-1)
    if after >= 0 and known and last - after < _FEW:
        return set(range(after + 1, last + 1))
    numbers = {batch_of(name) for day in days for name in names_in(day)}
    return {number for number in numbers if number is not None and number > after}
