from random import Random

import pytest

from tests.storage.faulty_filesystem import (
    SEGMENT_BYTES,
    ConfirmsBeforeSync,
    FaultyFilesystem,
    RollsWithoutSync,
    SyncsNoDirectory,
    SyncsNothingAfterRecovery,
)
from tests.storage.history import History, Violation, run_history
from waybill.model.errors import DefinitionsLost, StoreFailed
from waybill.testing.simulated_disk import SimulatedDisk

HISTORIES = 3000
LONG_HISTORIES = 300
PLANTED_HISTORIES = 2000

# Each of these has found a mistake once.
KEPT_SEEDS = [37, 64]
KEPT_LONG_SEEDS = [6, 38, 251, 693, 1010, 1441, 3967, 5513]
# With segments of 1,000, 2,000 and 3,000 bytes, by the seed.
KEPT_MIXED_SEEDS = [52785, 53302, 54485]


def long_history(seed: int, segment_bytes: int = 1000) -> History:
    disk = SimulatedDisk(Random(seed + 1_000_000))
    history = History(seed, disk, disk, segment_bytes=segment_bytes, max_steps=400)
    history.run()
    return history


def test_no_crash_makes_the_store_forget_or_invent_anything() -> None:
    recoveries = sum(run_history(seed).recoveries for seed in range(HISTORIES))
    assert recoveries > 2 * HISTORIES


def test_compaction_and_checkpoints_survive_crashes() -> None:
    for seed in range(LONG_HISTORIES):
        long_history(seed, 1000 + seed % 3 * 1000)


@pytest.mark.parametrize("seed", KEPT_SEEDS)
def test_kept_seed(seed: int) -> None:
    run_history(seed)


@pytest.mark.parametrize("seed", KEPT_LONG_SEEDS)
def test_kept_long_seed(seed: int) -> None:
    long_history(seed)


@pytest.mark.parametrize("seed", KEPT_MIXED_SEEDS)
def test_kept_mixed_seed(seed: int) -> None:
    long_history(seed, 1000 + seed % 3 * 1000)


@pytest.mark.parametrize("bug", [ConfirmsBeforeSync, SyncsNoDirectory, RollsWithoutSync, SyncsNothingAfterRecovery])
def test_a_planted_bug_is_caught(bug: type[FaultyFilesystem]) -> None:
    for seed in range(PLANTED_HISTORIES):
        disk = SimulatedDisk(Random(seed + 1_000_000))
        try:
            History(seed, disk, bug(disk), segment_bytes=SEGMENT_BYTES, max_steps=150).run()
        except (Violation, DefinitionsLost, StoreFailed, OSError):
            return
    pytest.fail(f"{bug.__name__} was not noticed in {PLANTED_HISTORIES} histories")
