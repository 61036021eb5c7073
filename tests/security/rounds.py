"""What a bystander program does after each round: it prints how long the longest one took, and rests if it is told to.

It prints how many rounds there were, and the most that one took, in milliseconds: of time, and of the CPU of the
process that is attacked. The latter says the same on a busy machine.
"""

import select
import time
from pathlib import Path
from typing import Final

PAUSE_S: Final = 0.005
REST: Final = "rest\n"
GO_ON: Final = "go on\n"


class Rounds:
    """Measures the rounds of a bystander of a process."""

    def __init__(self, process: int) -> None:
        self._schedstat = Path(f"/proc/{process}/schedstat")
        self._told = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - as long as the process
        self._count = 0
        self._longest_s = self._longest_cpu_s = 0.0
        self._began = self._cpu_before = 0.0

    def begin(self) -> None:
        """Begin one step of a round."""
        self._began, self._cpu_before = time.monotonic(), self._cpu_s()

    def end(self) -> None:
        """End this step."""
        self._longest_s = max(self._longest_s, time.monotonic() - self._began)
        self._longest_cpu_s = max(self._longest_cpu_s, self._cpu_s() - self._cpu_before)

    def tell(self) -> None:
        """End a round, and rest for a moment, or for as long as standard input says."""
        self._count += 1
        print(self._count, round(self._longest_s * 1000), round(self._longest_cpu_s * 1000), flush=True)
        # Without a buffer, in which the next line would be out of sight of `select`.
        if select.select([self._told], [], [], PAUSE_S)[0] and self._told.readline() == REST.encode():
            print(REST, end="", flush=True)
            self._told.readline()

    def _cpu_s(self) -> float:
        return int(self._schedstat.read_text().split()[0]) / 1e9
