"""Install a wheel into a bare environment, as a user on a machine without a compiler does, and run a first job.

python -m tests.bare_install WHEEL
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from pathlib import Path

PROGRAM = """
from waybill import Jobs

jobs = Jobs()


@jobs.handler("greeting.say")
async def say(name: str) -> str:
    return f"hello, {name}"
"""
REPOSITORY = Path(__file__).resolve().parent.parent
SECONDS = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(url: str, body: object = None) -> dict[str, dict[str, object]]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310 - our own server
        found: dict[str, dict[str, object]] = json.load(response)
        return found


def first_job(directory: Path, environment: dict[str, str]) -> None:
    """Run `waybill up` with a program, and push a job to it."""
    (directory / "hello.py").write_text(PROGRAM, encoding="utf-8")
    url = f"http://127.0.0.1:{(port := free_port())}/ojs/v1"
    command = (
        "waybill",
        "up",
        "hello:jobs",
        "--no-reload",
        "--amqp-port",
        "0",
        "--port",
        str(port),
        "--data-dir",
        "data",
    )
    with subprocess.Popen(command, cwd=directory, env=environment) as process:
        try:
            deadline = time.monotonic() + SECONDS
            while True:
                try:
                    job = ask(f"{url}/jobs", {"type": "greeting.say", "args": ["world"]})["job"]
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
            while job["state"] != "completed":
                assert time.monotonic() < deadline, job
                time.sleep(0.05)
                job = ask(f"{url}/jobs/{job['id']}")["job"]
            assert job["result"] == "hello, world", job
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0


def main() -> None:
    wheel = Path(sys.argv[1]).resolve()
    with zipfile.ZipFile(wheel) as archive:
        is_compiled = any(name.endswith(".so") for name in archive.namelist())
    assert is_compiled == ("-none-any" not in wheel.name), "the name of the wheel does not say what is in it"
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)
        python = directory / "venv" / "bin" / "python"
        install: list[str | Path] = [
            REPOSITORY / "scripts" / "install.sh",
            python,
            f"waybill-amqp[http,state] @ {wheel.as_uri()}",
        ]
        subprocess.run(install, check=True)
        # No compiler, and nothing of this checkout.
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "WAYBILL"))}
        environment = kept | {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": name, "CC": "/nowhere"}
        said = subprocess.run(
            ["waybill", "--version"], env=environment, cwd=directory, check=True, capture_output=True, text=True
        ).stdout
        assert said.endswith("(compiled)\n" if is_compiled else "(interpreted)\n"), said
        hello = REPOSITORY / "examples" / "hello_jobs.py"
        done = subprocess.run(
            [python, hello], env=environment, cwd=directory, check=True, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.stdout == "hello, world\n", done
        first_job(directory, environment)
        print(f"{wheel.name}: installed, and a first job done, after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
