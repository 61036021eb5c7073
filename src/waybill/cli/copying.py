"""Copies the files of a store: as many bytes of each as its manifest says, the definitions and the manifest last.

A broker does not start where there are messages without definitions. So it never takes a copy that was cut off, and has
only some of the messages, for a whole one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from waybill.cli.byte_progress import byte_progress
from waybill.model.errors import UnsupportedStoreVersion
from waybill.storage.definitions import NAME as DEFINITIONS_NAME
from waybill.storage.manifest import NAME as MANIFEST_NAME
from waybill.storage.manifest import read_manifest
from waybill.transport.disk import LOCK_NAME, DiskFilesystem

CHUNK_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class Copied:
    """How much was copied."""

    files: int
    octets: int


def make_empty(directory: Path) -> None:
    """Make a private directory. Raises click.ClickException if it exists and is not empty."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise click.ClickException(f"{directory} is not empty: use an empty or a new directory")


def copy_files(source: Path, target: Path) -> Copied:
    """Copy everything that the manifest of `source` lists, durably. Raises OSError, click.ClickException."""
    octets = 0
    sizes = _sizes(source)
    total = sum((source / name).stat().st_size if size is None else size for name, size in sizes.items())
    with byte_progress("copying", total) as tell:
        for name, size in sorted(sizes.items(), key=lambda item: (item[0] == DEFINITIONS_NAME, item[0])):
            (target / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            octets += _copy(source / name, target / name, size, tell)
        if (source / MANIFEST_NAME).exists():
            # A backup without it is not complete.
            octets += _copy(source / MANIFEST_NAME, target / MANIFEST_NAME, None, tell)
    for directory in {target, *(target / name for name in sizes)}:
        sync(directory if directory.is_dir() else directory.parent)
    return Copied(len(sizes), octets)


def _sizes(source: Path) -> dict[str, int | None]:
    """The valid size of each file; None for all of it, in a directory of version 0.1 without a manifest."""
    try:
        manifest = read_manifest(DiskFilesystem(source))
    except UnsupportedStoreVersion as error:
        raise click.ClickException(str(error)) from None
    if manifest.is_bad:
        raise click.ClickException(f"{source / MANIFEST_NAME} is damaged: see `waybill store check`")
    if manifest.is_present:
        lost = [name for name in manifest.extents if not (source / name).is_file()]
        if lost:
            raise click.ClickException(f"{source} lacks {', '.join(lost)}: see `waybill store check`")
        return {name: int(extent.size) for name, extent in manifest.extents.items()}
    found = [path for path in source.rglob("*.log") if path.is_file() and path.name != LOCK_NAME]
    if not found:
        raise click.ClickException(f"{source} is not the data directory of a broker")
    return {str(path.relative_to(source)): None for path in found}


def _copy(source: Path, target: Path, size: int | None, tell: Callable[[int], None]) -> int:
    """Copy and sync the first `size` octets of a file, which has its name then. Returns the number of copied octets."""
    copied = 0
    part = target.with_name(f"{target.name}.part")
    with source.open("rb") as reading, part.open("xb") as writing:
        while size is None or copied < size:
            chunk = reading.read(CHUNK_BYTES if size is None else min(CHUNK_BYTES, size - copied))
            if not chunk:
                break
            writing.write(chunk)
            copied += len(chunk)
            tell(len(chunk))
        writing.flush()
        os.fsync(writing.fileno())
    if size is not None and copied < size:
        raise click.ClickException(f"{source} has {copied} bytes instead of {size}: see `waybill store check`")
    part.rename(target)
    return copied


def sync(path: Path) -> None:
    """Make a file, or the entries of a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
