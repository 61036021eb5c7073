"""Runs `waybill pipeline run --once`, and tells what it has done. The other programs of this directory use it."""

import json
import os
import subprocess
from typing import Any

# In which order the tables are computed, each from those before it.
TABLES = (
    "bronze/events",
    "silver/attempts",
    "silver/jobs",
    "gold/activity",
    "gold/failures",
    "gold/dead_letters",
    "gold/retries",
    "gold/objectives",
    "gold/workers",
)


class RunFailed(Exception):
    """The command failed; the text is its last line."""


def update(uri: str, data: str) -> dict[str, Any]:
    """Bring all tables up to date. Returns counts of `batches` and `events`, and seconds by table in `tables`.

    It can be repeated after any failure: every event is in the tables once.
    """
    command = ["waybill", "pipeline", "run", "--once", "--json", "--data", data]
    # On the command line, everyone on the machine would see the password.
    done = subprocess.run(command, check=False, env=os.environ | {"WAYBILL_URI": uri}, capture_output=True, text=True)
    if done.returncode:
        raise RunFailed((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    result: dict[str, Any] = json.loads(done.stdout)
    return result
