"""A bash in which the commands of a page run one after the other, as a reader types them."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.program_environment import program_environment

END: Final = "--- end of output ---"
START_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 30.0
LOOKS: Final = re.compile(
    r"cat |grep |curl -s localhost|waybill (queue list|job info|job list|dlq list|cron (list|show|next)|top|doctor)\b"
)


class Shell:
    """`ports` maps the numbers that pages show to those that are free here; commands in between see the latter."""

    def __init__(self, directory: Path, repository: Path, ports: Mapping[int, int]) -> None:
        self._ports = dict(ports)
        self._directory = directory
        programs = directory / ".programs"
        programs.mkdir()
        modules = ("waybill", "celery", "dramatiq", "flask", "uvicorn", "pytest")
        for name, arguments in (("python", ""), *((module, f"-m {module}") for module in modules)):
            script = programs / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
            script.chmod(0o755)
        environment = program_environment() | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(directory),
            "XDG_CONFIG_HOME": str(directory / ".config"),
            "COLUMNS": "200",
            "PYTHONUNBUFFERED": "1",
            # The page's broker has the default port, this one a free one.
            "WAYBILL_URL": f"amqp://guest:guest@localhost:{ports[5672]}/%2Fojs",
        }
        self._process = subprocess.Popen(
            ["bash"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def translate(self, text: str) -> str:
        """The text with the ports of this shell."""
        for shown, real in self._ports.items():
            text = re.sub(rf"(?<![\d.]){shown}(?!\d)", str(real), text)
        return text

    def write(self, name: str, text: str) -> None:
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.translate(text), encoding="utf-8")

    def run(self, command: str) -> str:
        """What the command prints. One that goes to the background is waited for until it serves its port."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        command = self.translate(command)
        self._process.stdin.write(f"{command}\necho '{END}'\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.endswith(f"{END}\n"):
                lines.append(line.removesuffix(f"{END}\n"))
                if command.endswith("&"):
                    self._wait_for_ports(command)
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"the shell ended in {command!r}: {lines}")

    def run_until(self, command: str, expected: str) -> str:
        """What the command prints. One that only looks is repeated for a while if that is not as expected."""
        expected = self.translate(expected)
        deadline = time.monotonic() + LOOK_SECONDS
        output = self.run(command)
        while LOOKS.match(command) and not agrees(expected, output) and time.monotonic() < deadline:
            time.sleep(0.05)
            output = self.run(command)
        return output

    def _wait_for_ports(self, command: str) -> None:
        for port in self._ports.values():
            if re.search(rf"(?<!\d){port}(?!\d)", command) and "://" not in command:
                _wait_for_listener(port, command)

    def close(self) -> None:
        """End the shell and all that it has started: they are one process group."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate(timeout=30)


def _wait_for_listener(port: int, command: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError(f"nothing listens on {port}: {command}")


def agrees(expected: str, found: str) -> bool:
    """Whether the output is as the page shows it: `...` stands for anything, runs of blanks for one."""
    squeezed = [" ".join(text.split()) for text in (expected, found)]
    pattern = re.escape(squeezed[0]).replace(r"\.\.\.", ".*")
    return re.fullmatch(pattern, squeezed[1]) is not None
