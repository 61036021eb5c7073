"""A Celery app becomes a module of handlers and cron jobs that does the same."""

import sys
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.test_jobs_object import fresh
from waybill.cli.jobs_object import load_jobs
from waybill.cli.migrate import command

__all__ = ["fresh"]

APP = """
from celery import Celery
from celery.schedules import crontab

app = Celery("shop", broker="memory://")
app.conf.timezone = "Europe/Berlin"
app.conf.task_routes = {"old_shop.report": {"queue": "Slow_Work"}, "old_shop.send": {"priority": 9}}
done = []

@app.task(time_limit=30, shared=False)
def send(to: str, subject: str = "none", *, copies: int = 1):
    done.append((to, subject, copies))
    return to

@app.task(autoretry_for=(ValueError,), max_retries=4, retry_backoff=2, retry_backoff_max=60, shared=False)
def report(name, day=None):
    if day == "bad":
        raise ValueError(day)
    return name

@app.task(bind=True, max_retries=None, rate_limit="10/m", shared=False)
def sync(self, *numbers):
    return sum(numbers)

app.conf.beat_schedule = {
    "Every morning": {"task": "old_shop.report", "schedule": crontab(hour=7, minute="*/15", day_of_week="mon-fri"),
                      "args": ("daily",)},
    "often": {"task": "old_shop.sync", "schedule": 30.0, "args": (1, 2)},
    "sunset": {"task": "old_shop.report", "schedule": "sunset"},
    "gone": {"task": "old_shop.gone", "schedule": 9},
}
"""


@pytest.fixture
def program() -> str:
    Path("old_shop.py").write_text(APP, encoding="utf-8")
    done = CliRunner().invoke(command, ["celery", "old_shop", "--output", "new_shop.py"])
    assert done.exit_code == 0, done.output
    assert done.output == "wrote new_shop.py: 3 handlers, 2 cron jobs\n"
    return Path("new_shop.py").read_text(encoding="utf-8")


def test_handlers_have_the_options_of_the_tasks_and_do_the_same(program: str) -> None:
    jobs = load_jobs("new_shop")
    send, report, sync = (jobs.handlers[f"old_shop.{name}"] for name in ("send", "report", "sync"))
    assert (send.queue, report.queue, sync.queue) == ("celery", "slow-work", "celery")
    assert (send.defaults["timeout"], send.defaults["priority"]) == (30, 100)
    policies = {handler.type: handler.defaults["retry"] for handler in (send, report, sync)}
    assert policies["old_shop.send"].max_attempts == 1
    assert policies["old_shop.report"].max_attempts == 5
    assert policies["old_shop.report"].initial_interval == timedelta(seconds=2)
    assert policies["old_shop.report"].max_interval == timedelta(seconds=60)
    assert policies["old_shop.sync"].max_attempts == 100
    assert send.job("a", copies=3).args == ["a", "none", {"copies": 3}]
    assert send("a", copies=3) == "a"
    assert sys.modules["old_shop"].done == [("a", "none", 3)]
    assert report("x", None) == "x"
    with pytest.raises(ValueError, match="bad"):
        report("x", "bad")
    assert sync(1, 2) == 3


def test_the_schedule_becomes_cron_jobs_and_the_rest_a_todo(program: str) -> None:
    jobs = load_jobs("new_shop")
    found = {name: (one.cron, one.timezone, one.args) for name, one in jobs.cron_jobs.items()}
    assert found["every-morning"] == ("*/15 7 * * mon-fri", "Europe/Berlin", ["daily"])
    assert found["often"][2] == [1, 2]
    for text in ("sunset", "old_shop.gone", "rate_limit '10/m'", "the task is bound", "retries this forever"):
        assert any(text in line for line in program.splitlines() if "TODO" in line), text


def test_what_is_no_app_is_said(program: str) -> None:
    for target, text in (("old_shop:done", "is not a Celery app"), ("nowhere_at_all", "nowhere_at_all")):
        done = CliRunner().invoke(command, ["celery", target])
        assert done.exit_code != 0
        assert text in done.output
    done = CliRunner().invoke(command, ["celery", "old_shop", "--output", "new_shop.py"])
    assert "already exists" in done.output
