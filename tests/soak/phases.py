"""Where the time of a run goes: its phases, each with its seconds, and how often it was entered."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """One phase at a time; a phase that is entered again adds to its seconds."""

    def __init__(self) -> None:
        self._spent: defaultdict[str, list[float]] = defaultdict(list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of a block, also of one that fails."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - started)

    def add(self, name: str, seconds: float) -> None:
        """Count a time that is already over."""
        self._spent[name].append(seconds)

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {sum(times):.0f} s" + (f" ({len(times)} times, at most {max(times):.0f} s)" if times[1:] else "")
            for name, times in self._spent.items()
        )
