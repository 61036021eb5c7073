"""The account must not come out even when a job is missing, or when two sources tell different stories."""

import json
from collections import Counter
from pathlib import Path

import pytest

from examples.demo.analysis import NotPython, NotText, Result, analyse
from examples.demo.evidence import Evidence, disagreements, report_differences
from examples.demo.files import select_files
from examples.demo.notebook import Run
from examples.demo.progress import Progress
from waybill.ojs.spec.events import ReceivedEvent

RESULT = Result(lines=1, functions=0, bytes=2, sha256="00")


def good(job_id: str) -> Run:
    return Run(job_id, 1, "x.py", None, RESULT)


def told(*events: tuple[str, str]) -> Progress:
    """The progress after these events, each a type and a job."""
    progress = Progress(2)
    for number, (kind, job_id) in enumerate(events):
        data: dict[str, object] = {"attempt": 1, "total_attempts": 1}
        if kind == "completed":
            data["result"] = dict(RESULT)
        progress.see(ReceivedEvent(f"evt_{number}", f"job.{kind}", "/test", "", job_id, data))
    return progress


def whole_story() -> Progress:
    return told(("enqueued", "a"), ("enqueued", "b"), ("completed", "a"), ("discarded", "b"))


def evidence(pushed: str = "ab", done: str = "a", dead: str = "b", left: int = 0) -> Evidence:
    return Evidence(list(pushed), [good(job_id) for job_id in done], Counter(dead), left, 0)


def test_an_account_that_is_even() -> None:
    assert disagreements(evidence(), whole_story()) == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (evidence(dead=""), "1 jobs were lost"),
        (evidence(done=""), "1 jobs were lost"),
        (evidence(done="ab"), "1 jobs were both done and given up"),
        (evidence(pushed="a"), "1 jobs came to an end that nobody has pushed"),
        (evidence(left=3), "3 messages are still waiting"),
    ],
)
def test_an_account_that_is_not(found: Evidence, said: str) -> None:
    assert said in disagreements(found, whole_story())


def test_events_that_tell_less_than_the_workers() -> None:
    story = told(("enqueued", "a"), ("enqueued", "b"), ("discarded", "b"))
    assert "1 jobs are done according to one source only" in disagreements(evidence(), story)


def test_a_report_that_counts_otherwise(tmp_path: Path) -> None:
    totals = {"pushed": 2, "completed": 1, "discarded": 1, "open": 0, "malformed": 0}
    file = tmp_path / "totals.json"
    file.write_text(json.dumps(totals))
    assert report_differences(file, evidence()) == []
    file.write_text(json.dumps(totals | {"completed": 2}))
    assert report_differences(file, evidence()) == ["the report says 2 completed, the workers and queues 1"]


def test_a_retry_is_waited_for_until_the_next_attempt_begins_in_whichever_order_the_events_come() -> None:
    progress = told(("enqueued", "a"), ("started", "a"), ("retrying", "a"))
    assert progress.waiting == {"a": 1}
    second: dict[str, object] = {"attempt": 2}
    progress.see(ReceivedEvent("evt_x", "job.started", "/test", "", "a", second))
    assert progress.waiting == {}
    progress.see(ReceivedEvent("evt_late", "job.retrying", "/test", "", "a", {"attempt": 1}))
    assert progress.waiting == {}


def test_what_a_file_is(tmp_path: Path) -> None:
    def write(name: str, data: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    assert analyse(write("good.py", b"def f():\n    async def g(): ...\n")) == {
        "lines": 2,
        "functions": 2,
        "bytes": 32,
        "sha256": "7ea031d4daf8070e207bd00f8b12f607211cfff0fb86eb81e6135025e18f32e5",
    }
    for name, data, error in [
        ("binary.py", b"a\0b", NotText),
        ("latin.py", b"\n\n\nx = '\xe9'\n", UnicodeDecodeError),
        ("old.py", b"print 1\n", SyntaxError),
        ("data.json", b"{}", NotPython),
    ]:
        with pytest.raises(error):
            analyse(write(name, data))


def test_which_files_are_taken(tmp_path: Path) -> None:
    for name in ("b.py", "a.txt", ".git/config", "__pycache__/a.pyc", "site-packages/x.py", "sub/c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    taken = [str(path.relative_to(tmp_path)) for path in select_files(tmp_path).paths]
    assert taken == ["a.txt", "b.py", "sub/c.py"]
