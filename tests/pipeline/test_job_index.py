"""The index finds the parts of jobs among any number of others."""

from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from waybill.pipeline.job_index import JobIndex, entries_of, hashes_of
from waybill.pipeline.snapshots import Contents, Snapshots


def test_what_was_added_in_many_runs_is_found(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    snapshots = Snapshots(tmp_path)
    truth: dict[int, set[int]] = {}
    base = None
    for number in range(1, 60):
        draft = snapshots.draft(base, number=number)
        index = JobIndex(base)
        # A small range, so that many come again, some into other parts.
        hashes = np.unique(chance.integers(-(2**63), 2**63 - 1, 50) // 2**55 * 2**55)
        parts = chance.integers(0, 5, len(hashes)).astype(np.int32)
        known = index.lookup(hashes)
        assert {(int(one["hash"]), int(one["part"])) for one in known} == {
            (int(one), part) for one in hashes for part in truth.get(int(one), set())
        }
        index.add(draft, f"{number:08}", hashes, parts, known)
        base = draft.finish(Contents(number), [])
        for one, part in zip(hashes, parts, strict=True):
            truth.setdefault(int(one), set()).add(int(part))
    assert base is not None
    assert len(base.loose("index")) < 40


def test_the_driver_gets_numbers_for_jobs_and_no_ids(spark: SparkSession) -> None:
    """The ids of a batch may be gigabytes, which Spark refuses to return."""
    ids = ["a", "b", "\U0001f600" * 1000, "", "x\0y"]
    homes = spark.createDataFrame([(one, 2 * number) for number, one in enumerate(ids)], "job_id string, part int")
    hashes, parts = entries_of(homes)
    assert (hashes.dtype.name, parts.dtype.name) == ("int64", "int32")
    assert dict(zip(hashes, parts, strict=True)) == {one: 2 * number for number, one in enumerate(hashes_of(ids))}
    assert [len(found) for found in entries_of(homes.where("part > 100"))] == [0, 0]
