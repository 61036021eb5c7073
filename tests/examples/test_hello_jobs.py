import subprocess
import sys
from pathlib import Path


def test_the_job_is_done(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.hello_jobs"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello, world\n", "")


def test_it_is_the_example_of_the_readme(repository: Path) -> None:
    program = (repository / "examples" / "hello_jobs.py").read_text(encoding="utf-8").split('"""\n\n')[1]
    assert f"```python\n{program}```" in (repository / "README.md").read_text(encoding="utf-8")
