"""A killed search leaves no process behind."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.program_environment import program_environment


def test_the_processes_of_a_killed_search_end_with_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.search.search", "--cases", "1000000000", "--seed", "987654321"],
        stdout=subprocess.PIPE,
        env=program_environment(),
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        try:
            assert b"2 processes" in parent.stdout.readline()
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
            # One of them tracks the resources of the others.
            while len(children.read_text().split()) < 3:
                assert parent.poll() is None
            parent.kill()
            # The pipe is closed once no process has it any more.
            assert parent.stdout.read() == b""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
