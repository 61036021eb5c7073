"""A lock file, which keeps other processes out of a directory."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(directory: Path, refusal: Exception) -> Iterator[None]:
    """Hold `lock` in a directory, which is created if it is missing. Raises `refusal` if another process holds it."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refusal from None
        yield
