"""Memory of large blocks is returned, although others behind them are in use."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
from waybill.transport.allocator import LARGE_BYTES, return_large_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "returned":
    return_large_blocks()
# glibc raises its threshold when a block above it is freed.
block = b"x" * (6 * LARGE_BYTES)
del block
blocks = [b"x" * (2 * LARGE_BYTES) for _ in range(8)]
before = resident()
del blocks[:-1]
print((before - resident()) // LARGE_BYTES)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc keeps it")
@pytest.mark.parametrize(("settings", "how", "blocks"), [({}, "returned", 14), ({"GLIBC_TUNABLES": ""}, "returned", 0)])
def test_free_blocks_are_returned(settings: dict[str, str], how: str, blocks: int) -> None:
    env = {name: value for name, value in os.environ.items() if name != "MALLOC_MMAP_THRESHOLD_"}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], env={**env, **settings}, check=True, capture_output=True, text=True
    )
    assert abs(int(found.stdout) - blocks) <= 1


BURSTS = """
import resource
from waybill.transport.allocator import return_large_blocks

return_large_blocks()
for round in range(101):
    blocks = [b"x" * 100_000 for _ in range(40)]
    blocks.clear()
    if not round:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc keeps it")
def test_bursts_of_messages_use_the_same_pages() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    found = subprocess.run([sys.executable, "-c", BURSTS], env=env, check=True, capture_output=True, text=True)
    # 4 MB are a thousand pages.
    assert int(found.stdout) < 5000
