"""`waybill bridge` as a process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path


def test_a_signal_while_it_starts_ends_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"amqp://127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "shop.py").write_text(f"from waybill import Jobs\njobs = Jobs({uri!r})\n")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "waybill", "bridge", "celery", "shop:jobs", "--no-worker"]
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as process:
            connection, _ = silent.accept()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            connection.close()
