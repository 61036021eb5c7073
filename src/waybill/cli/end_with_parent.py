"""Ends a process together with its parent, also after a kill -9 of the parent."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

EXTRA_SECONDS = 5.0
"""How much longer than its grace period a process may take to stop."""


def end_with_parent(grace_seconds: float) -> None:
    """Watch standard input, which the parent keeps open and never writes to, until it is closed.

    Then the process gets SIGTERM, and is killed if it takes much longer than its grace period.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_seconds + EXTRA_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
