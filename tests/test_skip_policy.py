"""On a developer's machine a test may skip; with CI=true it fails and says why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SKIPPING_TEST = "import pytest\ndef test_it():\n    pytest.skip('needs a moon: apt install moon')\n"
SKIPPING_MODULE = "import pytest\npytest.skip('needs a moon: apt install moon', allow_module_level=True)\n"
EXPECTED_FAILURE = "import pytest\n@pytest.mark.xfail(strict=True)\ndef test_it():\n    assert False\n"


def run(directory: Path, repository: Path, text: str, ci: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_example.py").write_text(text)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", f"--rootdir={directory}", "-c", os.devnull]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(directory)],
        cwd=repository,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("text", [SKIPPING_TEST, SKIPPING_MODULE])
def test_a_skip_fails_under_ci_and_names_what_is_missing(tmp_path: Path, repository: Path, text: str) -> None:
    done = run(tmp_path, repository, text, ci="true")
    assert done.returncode != 0
    assert "needs a moon: apt install moon" in done.stdout


def test_a_skip_is_a_skip_elsewhere(tmp_path: Path, repository: Path) -> None:
    done = run(tmp_path, repository, SKIPPING_TEST, ci="")
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout


def test_an_expected_failure_is_no_skip(tmp_path: Path, repository: Path) -> None:
    done = run(tmp_path, repository, EXPECTED_FAILURE, ci="true")
    assert done.returncode == 0, done.stdout
