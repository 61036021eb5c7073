"""The Python that Spark starts its workers with: one that finds PySpark where it is installed.

Spark puts an archive of PySpark's sources first on the path of its workers, for machines that have no other. Python
keeps nothing that it compiles from an archive, so each new process compiles PySpark anew, which is most of its start:
about a second of CPU, for every streaming query and for every kind of worker. Where this very PySpark is installed, the
archive serves no purpose.
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
    """The path of a program that starts this interpreter so. `scratch`: where to put it (default: the user's cache).

    Where no such program can be had, the interpreter itself.
    """
    if os.name != "posix":
        return sys.executable
    digest = hashlib.sha256(sys.executable.encode()).hexdigest()[:16]
    try:
        place = (scratch or own_cache()) / f"python-{digest}" / "python"
        put_wrapper(place, _WRAPPER.format(python=sys.executable))
    except OSError:
        return sys.executable
    # There are homes from which nothing may be executed.
    return str(place) if os.access(place, os.X_OK) else sys.executable
