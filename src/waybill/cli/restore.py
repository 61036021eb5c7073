"""`waybill restore`: a data directory from a backup."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click

from waybill.cli.backup import STATE_FILE
from waybill.cli.copying import copy_files, make_empty, sync
from waybill.cli.echo import echo
from waybill.cli.target import json_option
from waybill.storage.manifest import NAME as MANIFEST_NAME


@click.command()
@click.argument("backup", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.argument("data_dir", type=click.Path(file_okay=False, path_type=Path))
@json_option
def command(backup: Path, data_dir: Path, *, as_json: bool) -> None:
    """Copy BACKUP, made by `waybill backup`, to DATA_DIR, an empty or new directory.

    Then start a broker with that data directory.
    """
    if not (backup / MANIFEST_NAME).is_file():
        raise click.ClickException(f"{backup} is not a complete backup: it has no {MANIFEST_NAME}")
    try:
        make_empty(data_dir)
        if (backup / STATE_FILE).is_file():
            shutil.copyfile(backup / STATE_FILE, data_dir / STATE_FILE)
            sync(data_dir / STATE_FILE)
        copied = copy_files(backup, data_dir)
    except OSError as error:
        raise click.ClickException(f"the restore is not complete: {error}") from None
    if as_json:
        echo(json.dumps({"directory": str(data_dir), "files": copied.files, "bytes": copied.octets}))
    else:
        echo(f"{copied.files} files, {copied.octets:,} bytes copied to {data_dir}")
