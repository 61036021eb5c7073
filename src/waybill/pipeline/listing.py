"""Lists directories with many entries."""

import os
from pathlib import Path


def names_in(place: Path) -> list[str]:
    """The names in a directory: paths of all of them would cost more than the listing."""
    return os.listdir(place)  # noqa: PTH208 - see above


def numbers_in(place: Path) -> list[int]:
    """The names in a directory that are numbers, in order; none if it does not exist. Others may be of any program."""
    return sorted(int(name) for name in names_in(place) if name.isascii() and name.isdigit()) if place.is_dir() else []
