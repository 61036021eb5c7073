"""The environment of the programs that tests start."""

import os
import sys


def program_environment(**more: str) -> dict[str, str]:
    """Ours and `more`; the program imports the same package as the test, installed or only checked out."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | more
