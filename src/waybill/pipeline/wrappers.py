"""Small shell scripts that replace programs that Spark starts by path, to change their settings."""

import os
import tempfile
from pathlib import Path


def put_wrapper(place: Path, script: str) -> None:
    """Write an executable script. Two processes may do so at the same time."""
    place.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=place.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(script)
    Path(draft).chmod(0o755)
    Path(draft).replace(place)


def own_cache() -> Path:
    """Return a directory that only this user can write to, so that other users cannot place a program there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "waybill"
    cache.mkdir(parents=True, exist_ok=True)
    return cache
