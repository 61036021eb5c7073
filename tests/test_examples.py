"""Every example that wants a broker runs, with warnings as errors, and says what it promises."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("quickstart", ["sent 'Welcome' to ada@example.com", "completed: 6"]),
        ("retries", ["attempt 2 to charge flaky with 995 cents", "completed: 2, failed: 3, retried: 1, discarded: 2"]),
        ("processes", ["2262 primes in attempt 1\n2262 primes in attempt 2", "ledger closed with 1 lines"]),
        ("scheduled", ["first\nsecond"]),
        (
            "periodic",
            ["all is well\nall is well", "health.check: @every 1s, paused", "billing.month: 0 23 L * *, active"],
        ),
        ("workflows", ["order 7: 19.50 charged", "letters: completed, 2 jobs done", "'total': 26"]),
    ],
)
def test_an_example_runs(repository: Path, waybill_uri: str, name: str, lines: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", f"examples.{name}", waybill_uri],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    # Failed attempts are logged, with their tracebacks; nothing else is.
    assert done.stderr == "" or (" failed in attempt 1: " in done.stderr and done.stderr.startswith("job "))
    assert [line for line in lines if line not in done.stdout] == []
    assert "never shown" not in done.stdout
