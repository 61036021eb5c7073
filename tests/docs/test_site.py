"""The site is built, with warnings as errors, and has what its readers look for."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.page import DOCS, pages
from tests.program_environment import program_environment


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=repository,
        env=program_environment(NO_MKDOCS_2_WARNING="1"),
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    # Not with --quiet: what is not logged is not counted as a warning.
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def test_it_has_every_page_a_search_and_a_dark_mode(site: Path) -> None:
    for page in pages():
        if page.path.is_relative_to(DOCS):
            name = page.path.relative_to(DOCS).with_suffix("")
            built = name.parent / "index.html" if name.name == "index" else name / "index.html"
            assert (site / built).is_file(), built
    assert (site / "search" / "search_index.json").is_file()
    home = (site / "index.html").read_text(encoding="utf-8")
    assert 'data-md-color-scheme="slate"' in home
    assert "A broker and a first job" in home


def test_docstrings_and_options_of_the_command_line_are_in_it(site: Path) -> None:
    assert "Enqueue a job by the name of its type" in (site / "reference/python/jobs/index.html").read_text()
    assert "--certificate-login-from" in (site / "reference/command-line/index.html").read_text()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if 'src="http' in line or 'rel="stylesheet" href="http' in line] == []
