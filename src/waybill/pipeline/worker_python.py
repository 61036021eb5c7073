"""The Python for Spark's workers, which uses the installed PySpark.

Spark puts an archive of PySpark's sources first on the path of its workers, for machines without PySpark. Python does
not cache what it compiles from an archive, so each new process compiles PySpark again. That takes about a second of CPU
for every streaming query and every kind of worker. Where the same PySpark is installed, the archive is not needed.
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import Final

from waybill.pipeline.wrappers import own_cache, put_wrapper

_WRAPPER: Final = """#!/bin/sh
# Starts {python} without the archives of PySpark's sources on its path.
set -f
IFS=:
kept=
for place in $PYTHONPATH; do
  case $place in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) kept="${{kept:+$kept:}}$place" ;;
  esac
done
export PYTHONPATH="$kept"
exec "{python}" "$@"
"""


def worker_python(scratch: Path | None = None) -> str:
    """The path of a script that starts this interpreter without the archive.

    `scratch`: the directory for the script (default: the user's cache).

    Returns the interpreter itself if the script cannot be written.
    """
    if os.name != "posix":
        return sys.executable
    digest = hashlib.sha256(sys.executable.encode()).hexdigest()[:16]
    try:
        place = (scratch or own_cache()) / f"python-{digest}" / "python"
        put_wrapper(place, _WRAPPER.format(python=sys.executable))
    except OSError:
        return sys.executable
    # Home directories may be mounted with noexec.
    return str(place) if os.access(place, os.X_OK) else sys.executable
