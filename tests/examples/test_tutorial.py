"""Runs the tutorial: its files are written, its commands run in one shell, and what they print is compared."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
END = "--- end of output ---"


class Shell:
    """A bash in which commands run one after the other, as a reader types them."""

    def __init__(self, directory: Path, repository: Path, port: int) -> None:
        programs = directory / "programs"
        programs.mkdir()
        for name, arguments in (("python", ""), ("waybill", "-m waybill")):
            script = programs / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
            script.chmod(0o755)
        environment = os.environ | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([*sys.path, str(repository / "src")]),
            "XDG_CONFIG_HOME": str(directory / "settings"),
            "COLUMNS": "200",
            # The page's broker has the default port, this one a free one.
            "WAYBILL_URL": f"amqp://guest:guest@localhost:{port}/%2Fojs",
        }
        self._process = subprocess.Popen(
            ["bash"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\necho '{END}'\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line == f"{END}\n":
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"the shell ended in {command!r}: {lines}")

    def close(self) -> None:
        self.run("kill $(jobs -p) 2>/dev/null")
        self._process.communicate("exit\n", timeout=30)


def agrees(expected: str, found: str) -> bool:
    """Whether the output is as the page shows it: `...` stands for anything, runs of blanks for one."""
    squeezed = [" ".join(text.split()) for text in (expected, found)]
    pattern = re.escape(squeezed[0]).replace(r"\.\.\.", ".*")
    return re.fullmatch(pattern, squeezed[1]) is not None


@pytest.fixture
def shell(tmp_path: Path, repository: Path, free_port: int) -> Iterator[Shell]:
    shell = Shell(tmp_path, repository, free_port)
    yield shell
    shell.close()


@pytest.mark.timeout(400)  # some twenty programs are started
def test_the_tutorial_does_what_it_says(shell: Shell, repository: Path, tmp_path: Path, free_port: int) -> None:
    page = (
        (repository / "docs" / "tutorial" / "first-job.md").read_text(encoding="utf-8").replace("5672", str(free_port))
    )
    steps = 0
    for kind, text in BLOCK.findall(page):
        if kind == "python":
            name = text.partition("\n")[0].removeprefix("# ")
            (tmp_path / name).write_text(text, encoding="utf-8")
            continue
        for step in text.removeprefix("$ ").split("\n$ "):
            command, _, expected = step.partition("\n")
            if command.startswith("pip install"):
                # tests/test_build.py installs the package.
                continue
            found = shell.run(command)
            assert agrees(expected, found), f"$ {command}\n{found}\nexpected:\n{expected}"
            if command.startswith("waybill broker"):
                shell.run("until grep -q ready broker.log; do sleep 0.05; done")
            steps += 1
    assert steps >= 20
