"""The signature of a handler is the signature of its `push`: both type checkers know it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "typing"
MISTAKES = HERE / "mistakes.py"


def wrong_lines() -> set[int]:
    lines = MISTAKES.read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if "# wrong" in line}


def test_mypy_finds_each_mistake_and_no_other(repository: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--no-pretty", "--hide-error-context", str(MISTAKES)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository, timeout=110, check=False)
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert found == wrong_lines(), done.stdout + done.stderr


def test_pyright_finds_each_mistake_and_accepts_the_examples(repository: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("pyright needs Node.js: apt install nodejs npm")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    command += [str(repository / "examples"), str(MISTAKES)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository, timeout=110, check=False)
    assert done.stdout.lstrip().startswith("{"), done.stdout + done.stderr
    found = [one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    mistakes = {one["range"]["start"]["line"] + 1 for one in found if one["file"] == str(MISTAKES)}
    assert mistakes == wrong_lines(), done.stdout
    assert [one for one in found if one["file"] != str(MISTAKES)] == []
