"""A process that ends with the one that has started it, however that ends: kill -9 leaves nothing running."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

EXTRA_SECONDS = 5.0
"""How much longer than its grace period a process may take to end."""


def end_with_parent(grace_seconds: float) -> None:
    """Watch standard input, whose other end the parent holds and never writes to; its end is that of the parent.

    The process gets SIGTERM then, and is killed if it takes much longer than its grace period.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_seconds + EXTRA_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
