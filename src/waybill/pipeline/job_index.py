"""Finds the parts of silver that contain given jobs, without reading silver.

The index maps a 64-bit hash of a job's id to the parts in which the job has been. It is a list of runs, each a pair of
array files: sorted hashes, and their parts. A refresh adds a small run; runs of similar size are merged, up to a limit.
A lookup is a binary search in each run, in memory-mapped files: with 100 million jobs, some dozen runs.

Entries are never changed. A job that moved has several, and jobs with equal hashes share entries: the found parts
always include all parts of a job, and sometimes others. Readers of the parts filter by id.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, LongType, StructField, StructType
from xxhash import xxh3_64_intdigest

from waybill.pipeline.snapshots import Draft, Snapshot

Hashes = npt.NDArray[np.int64]
Parts = npt.NDArray[np.int32]

DIRECTORY: Final = "index"
_HASHES: Final = ".hashes.npy"
_PARTS: Final = ".parts.npy"
_ENTRIES_MAX: Final = 1 << 22
_MERGED: Final = 8
_ENTRIES: Final = StructType([StructField("hash", LongType()), StructField("part", IntegerType())])
_PAIR: Final = np.dtype([("hash", np.int64), ("part", np.int32)])


class JobIndex:
    """The index of a snapshot. Raises OSError and ValueError for damaged files."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        files = [] if snapshot is None else snapshot.loose(DIRECTORY)
        self._runs: dict[str, tuple[Hashes, Parts]] = {
            file.name.removesuffix(_HASHES): (_load(file), _load(file.with_name(file.name.replace(_HASHES, _PARTS))))
            for file in files
            if file.name.endswith(_HASHES)
        }
        for name, (hashes, parts) in self._runs.items():
            if hashes.dtype != np.int64 or parts.dtype != np.int32 or hashes.shape != parts.shape or hashes.ndim != 1:
                raise ValueError(f"the index run {name} is damaged")

    def lookup(self, wanted: Hashes) -> np.ndarray:
        """The entries of sorted, distinct hashes: pairs of hash and part."""
        found = [pairs for hashes, parts in self._runs.values() for pairs in _entries(wanted, hashes, parts)]
        return np.unique(np.concatenate(found)) if found else np.empty(0, _PAIR)

    def add(self, draft: Draft, name: str, hashes: Hashes, parts: Parts, known: np.ndarray) -> None:
        """Add a run of the entries that are not `known`, and merge runs of about the same size."""
        if len(known):
            fresh = np.setdiff1d(paired(hashes, parts), known)
            hashes, parts = fresh["hash"], fresh["part"]
        if not len(hashes):
            return
        merged = self._like(len(hashes))
        whole = _in_order([(hashes, parts), *(self._runs[old] for old in merged)])
        for old in merged:
            draft.remove(DIRECTORY, old + _HASHES)
            draft.remove(DIRECTORY, old + _PARTS)
        np.save(draft.put(DIRECTORY, name + _HASHES), whole[0])
        np.save(draft.put(DIRECTORY, name + _PARTS), whole[1])

    def _like(self, size: int) -> list[str]:
        """The runs to merge with a new one of this size: those of similar size, if they are enough."""
        chosen: list[str] = []
        total = size
        for name, (hashes, _) in sorted(self._runs.items(), key=lambda run: len(run[1][0])):
            if total + len(hashes) > _ENTRIES_MAX or len(hashes) > _MERGED * total:
                break
            chosen.append(name)
            total += len(hashes)
        return chosen if len(chosen) >= _MERGED - 1 else []


def hashes_of(job_ids: Iterable[str]) -> Hashes:
    """The hashes of ids."""
    found = [xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) for text in job_ids]
    return np.array(found, np.uint64).view(np.int64)


def entries_of(homes: DataFrame) -> tuple[Hashes, Parts]:
    """The hashes of the jobs of rows (job_id, part), and their parts.

    Tasks make the hashes: all ids of a batch might not fit in the driver's memory.
    """
    found = homes.mapInArrow(_hashed, _ENTRIES).toArrow()
    return found["hash"].to_numpy(), found["part"].to_numpy()


def _hashed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for job_ids, parts in (batch.columns for batch in batches):
        yield pa.RecordBatch.from_arrays([pa.array(hashes_of(job_ids.to_pylist())), parts], ["hash", "part"])


def paired(hashes: Hashes, parts: Parts) -> np.ndarray:
    """Pairs sorted by hash."""
    pairs = np.empty(len(hashes), _PAIR)
    pairs["hash"], pairs["part"] = hashes, parts
    return pairs


def _in_order(runs: Sequence[tuple[Hashes, Parts]]) -> tuple[Hashes, Parts]:
    """Merge runs, without duplicates. Sorting pairs directly would take ten times as long."""
    hashes = np.concatenate([run[0] for run in runs])
    parts = np.concatenate([run[1] for run in runs])
    order = np.lexsort((parts, hashes))
    hashes, parts = hashes[order], parts[order]
    is_new = np.ones(len(hashes), np.bool_)
    is_new[1:] = (hashes[1:] != hashes[:-1]) | (parts[1:] != parts[:-1])
    return hashes[is_new], parts[is_new]


def _entries(wanted: Hashes, hashes: Hashes, parts: Parts) -> Iterator[np.ndarray]:
    """The pairs of a run: first one for each hash, then those of equal hashes."""
    first = np.searchsorted(hashes, wanted, side="left")
    last = np.searchsorted(hashes, wanted, side="right")
    counts = last - first
    hit = counts > 0
    if not hit.any():
        return
    first, counts, hit_hashes = first[hit], counts[hit], wanted[hit]
    places = np.repeat(first - np.concatenate(([0], np.cumsum(counts)[:-1])), counts) + np.arange(counts.sum())
    yield paired(np.repeat(hit_hashes, counts), parts[places])


def _load(file: Path) -> Any:  # noqa: ANN401 - an array of either type; both are checked
    return np.load(file, mmap_mode="r", allow_pickle=False)
