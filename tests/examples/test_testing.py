"""The example of docs/how-to/test.md passes, and the page shows it as it is."""

import subprocess
import sys
from pathlib import Path


def test_the_tests_of_the_example_pass(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/testing"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert "7 passed" in done.stdout, done.stdout + done.stderr


def test_the_page_shows_the_example(repository: Path) -> None:
    page = (repository / "docs" / "how-to" / "test.md").read_text(encoding="utf-8")
    for name in ("shop.py", "test_shop.py", "test_shop_units.py"):
        text = (repository / "examples" / "testing" / name).read_text(encoding="utf-8")
        assert f"```python\n# examples/testing/{name}\n{text}```" in page
