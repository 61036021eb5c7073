"""Functions with typed arguments that a process imports."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path


@dataclass(frozen=True)
class Picture:
    path: Path
    age: timedelta


def shrink(picture: Picture, *, width: int = 100) -> list[Picture]:
    assert isinstance(picture.path, Path)
    return [Picture(picture.path / str(width), picture.age)]
