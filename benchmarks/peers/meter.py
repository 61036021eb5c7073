"""Measures the program of a job framework, in the same way for each.

    python -m benchmarks.peers.celery_jobs push URI COUNT KIND
    python -m benchmarks.peers.celery_jobs work URI COUNT KIND

`KIND` is noop, or sleep for jobs of 10 ms. Each prints one line of JSON at the end. `work` expects COUNT jobs in the
queue; its clocks run from the first job to the end of the last. CPU is that of the whole process with all threads.
"""

import itertools
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Final

NOOP: Final = "noop"
SLEEP: Final = "sleep"
SLEEP_SECONDS: Final = 0.01
CONCURRENCY: Final = 100
PREFETCH: Final = 1000
CHUNK: Final = 1000
"""How many publishes of an asyncio framework are under way at a time."""


class Arguments:
    """The arguments of a program."""

    def __init__(self) -> None:
        self.verb, self.uri, count, self.kind = sys.argv[1:5]
        self.count = int(count)
        self.options = sys.argv[5:]
        """What only the program itself understands."""


class Meter:
    """The clocks of one run."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._numbers = itertools.count(1)
        self._wall = 0.0
        self._cpu = 0.0

    def start(self) -> None:
        """Start the clocks."""
        self._wall, self._cpu = time.perf_counter(), cpu_seconds()

    def job_done(self) -> bool:
        """Count a job, in any thread; True for the last one."""
        number = next(self._numbers)
        if number == 1:
            self.start()
        return number == self._expected

    def report(self) -> None:
        """Stop the clocks and print the figures."""
        wall, cpu = time.perf_counter() - self._wall, cpu_seconds() - self._cpu
        figures = {"count": self._expected, "seconds": wall, "cpu_seconds": cpu, "rss_mb": resident_mb()}
        # Celery's worker has put a logger in the place of sys.stdout.
        print(json.dumps(figures), file=sys.__stdout__, flush=True)

    def report_and_exit(self) -> None:
        """Print the figures and end the process, from any thread."""
        self.report()
        os._exit(0)


def cpu_seconds() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)
