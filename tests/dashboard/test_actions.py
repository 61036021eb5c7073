"""What an operator does: search, cancel, retry, pause, enqueue; by mouse and by keyboard."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.conftest import REPORT, Server, start, stop, until
from tests.program_environment import program_environment
from waybill.backend.keys import add_key

Shown = Callable[[str, str], Any]

ROWS = "document.querySelectorAll('.rows .row').length"


def _click(page: Any, name: str, place: str = "main") -> None:
    page.locator(place).get_by_role("button", name=name, exact=True).first.click()


def test_jobs_are_searched_and_the_address_can_be_shared(shown: Shown, server: Server) -> None:
    job = server.push("search.me", {"customer": "c-4711"}, queue="searched", tags=["gold"])
    server.push("search.me", {"customer": "c-4712"}, queue="searched")
    page = shown("jobs", "Jobs")
    page.get_by_label("Search jobs").fill("c-4711")
    page.wait_for_url("**/#/jobs?text=c-4711")
    page.locator(f"a[href='#/job/{job}']").wait_for()
    until(page, ROWS, 1)
    page.reload()
    page.locator(f"a[href='#/job/{job}']").wait_for()
    page.get_by_label("Search jobs").fill(job[:20])
    page.wait_for_url(f"**/#/jobs?id={job[:20]}")
    page.locator(f"a[href='#/job/{job}']").wait_for()
    page = shown("jobs?queue=searched&state=available", "Jobs")
    until(page, ROWS, 2)


def test_the_keyboard_is_enough(shown: Shown, server: Server) -> None:
    jobs = [server.push("keys.press", number, queue="pressed") for number in range(3)]
    page = shown("jobs?queue=pressed", "Jobs")
    until(page, ROWS, 3)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("j")
    page.locator(".row.current").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/#/job/{jobs[1]}")
    page.keyboard.press("?")
    page.locator("dialog[open]").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.locator("h1", has_text="Queues").wait_for()
    until(page, "document.activeElement.id", "main")
    page.keyboard.press("/")
    until(page, "document.activeElement.id", "search")


def test_all_that_match_are_cancelled_after_they_were_counted(shown: Shown, server: Server) -> None:
    jobs = [server.push("bulk.cancel", number, queue="bulk") for number in range(3)]
    page = shown("jobs?queue=bulk", "Jobs")
    _click(page, "Cancel all…")
    page.locator("dialog", has_text="3 jobs are cancelled").wait_for()
    _click(page, "Cancel them", "dialog")
    page.locator("dialog", has_text="3 of 3").wait_for()
    for job in jobs:
        server.wait(job, "cancelled")


def test_picked_jobs_are_cancelled(shown: Shown, server: Server) -> None:
    jobs = [server.push("pick.me", number, queue="picked") for number in range(2)]
    page = shown("jobs?queue=picked", "Jobs")
    page.get_by_label(f"Select {jobs[0]}").check()
    _click(page, "Cancel 1")
    _click(page, "Cancel", "dialog")
    server.wait(jobs[0], "cancelled")
    assert server.ask("GET", f"jobs/{jobs[1]}")["job"]["state"] == "available"


def test_a_job_is_cancelled_and_another_edited_and_retried(shown: Shown, server: Server) -> None:
    job = server.push("cancel.me", queue="single")
    page = shown(f"job/{job}", "cancel.me")
    _click(page, "Cancel")
    _click(page, "Cancel the job", "dialog")
    page.locator("h1 .s-cancelled").wait_for()
    failed = server.push("report.make", 2001, queue="reports")
    server.wait(failed, "discarded")
    page = shown(f"job/{failed}", "report.make")
    _click(page, "Edit and retry")
    page.get_by_label("Arguments as JSON").fill("[2002]")
    _click(page, "Retry", "dialog")
    page.locator("text=no figures for 2002").first.wait_for()


def test_a_dead_letter_that_was_pushed_over_amqp_has_its_arguments(shown: Shown, server: Server) -> None:
    (port,) = (one["port"] for one in server.ask("GET", "broker/overview")["listeners"] if one["protocol"] == "amqp")
    uri = f"amqp://guest:guest@127.0.0.1:{port}/%2Fojs"
    push = ["job", "push", "report.make", "[2003]", "--queue", "reports", "--uri", uri]
    # In a process of its own: Playwright's loop runs in this thread.
    command = [sys.executable, "-m", "waybill", *push]
    pushed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=program_environment())
    job = pushed.stdout.strip()
    server.wait(job, "discarded")
    page = shown(f"job/{job}", "report.make")
    page.locator(".tree", has_text="2003").wait_for()
    assert page.locator(".failure .code").count() == 1
    _click(page, "Edit and retry")
    page.get_by_label("Arguments as JSON").fill("[2004]")
    _click(page, "Retry", "dialog")
    page.locator("text=no figures for 2004").first.wait_for()


def test_a_group_of_failures_is_retried_and_dismissed(shown: Shown, server: Server) -> None:
    failed = [server.push("report.make", year, queue="reports") for year in (1800, 1801)]
    for job in failed:
        server.wait(job, "discarded")
    page = shown("failures", "Failures")
    page.locator("tbody a", has_text="ValueError").first.click()
    page.locator("h1", has_text="ValueError").wait_for()
    _click(page, "Retry all…")
    page.locator("dialog", has_text=re.compile(r"\d+ jobs go back")).wait_for()
    page.get_by_label("Maximum jobs per second").fill("1000")
    _click(page, "Retry them", "dialog")
    page.locator("dialog", has_text=re.compile(r"([2-9]|\d\d) of ")).wait_for()
    server.wait(failed[0], "discarded")
    page.goto(f"{page.base}/ui/#/operations")
    page.locator("tbody tr", has_text="done").first.wait_for()
    page.goto(f"{page.base}/ui/#/failures")
    page.locator("tbody a", has_text="ValueError").first.click()
    _click(page, "Dismiss")
    page.wait_for_url("**/#/failures")


def test_a_queue_is_paused_and_purged(shown: Shown, server: Server) -> None:
    job = server.push("purge.me", queue="purged")
    page = shown("queues/purged", "purged")
    _click(page, "Pause")
    page.locator("h1 .tag", has_text="paused").wait_for()
    _click(page, "Resume")
    page.locator("h1 .tag").wait_for(state="detached")
    _click(page, "Purge…")
    page.get_by_label("Name of the queue").fill("purged")
    _click(page, "Purge", "dialog")
    server.wait(job, "cancelled")


def test_a_cron_job_runs_now_and_pauses(shown: Shown, server: Server) -> None:
    server.ask(
        "POST", "cron", {"name": "yearly", "cron": "0 3 1 1 *", "type": "cron.push", "args": [], "queue": "crons"}
    )
    page = shown("cron/yearly", "yearly")
    _click(page, "Run now")
    page.locator(".list .badge").first.wait_for()
    _click(page, "Pause")
    page.locator("h1 .tag", has_text="paused").wait_for()
    _click(page, "Resume")
    page.locator("h1 .tag").wait_for(state="detached")


def test_a_worker_over_http_is_quieted(shown: Shown, server: Server) -> None:
    server.ask("POST", "workers/fetch", {"queues": ["none"], "worker_id": "http-worker"})
    page = shown("workers", "Workers")
    own = page.locator(".worker", has_text="http-worker")
    own.get_by_role("button", name="Quiet").click()
    own.locator(".tag", has_text="quiet").wait_for()
    assert server.ask("POST", "workers/heartbeat", {"worker_id": "http-worker"})["directive"] == "quiet"


def test_a_worker_over_amqp_is_quieted_and_goes_on(shown: Shown) -> None:
    page = shown("workers", "Workers")
    own = page.locator(".worker", has_text="amqp").first
    own.get_by_role("button", name="Quiet").click()
    own.locator(".tag", has_text="quiet").wait_for()
    own.get_by_role("button", name="Resume").click()
    own.locator(".tag", has_text="running").wait_for()


def test_a_message_is_published_looked_at_and_purged(shown: Shown, server: Server) -> None:
    server.ask("PUT", "broker/queues/%2Fojs/peeked", {"durable": True})
    page = shown("broker/queues", "Broker")
    page.get_by_label("Find queues by name").fill("peek")
    page.locator("tbody a", has_text="peeked").click()
    page.locator("h1", has_text="peeked").wait_for()
    _click(page, "Publish…")
    page.get_by_label("Payload").fill("read me")
    _click(page, "Publish", "dialog")
    page.locator(".facts dd", has_text=re.compile("^1$")).first.wait_for()
    _click(page, "Peek")
    page.locator("dialog pre", has_text="read me").wait_for()
    _click(page, "Close", "dialog")
    _click(page, "Purge…")
    _click(page, "Purge", "dialog")
    until(page, "document.querySelectorAll('.facts dd')[0].innerText", "0")
    _click(page, "Delete…")
    _click(page, "Delete", "dialog")
    page.wait_for_url("**/#/broker/queues")
    noted = [(one["method"], one["path"]) for one in server.ask("GET", "admin/audit?limit=20")["items"]]
    assert ("PUT", "/ojs/v1/broker/queues//ojs/peeked") in noted


def test_a_user_gets_permissions_and_is_deleted(shown: Shown, server: Server) -> None:
    page = shown("broker/users", "Broker")
    _click(page, "Add a user…")
    _click(page, "Add", "dialog")
    # Nothing is sent before it has a name.
    page.locator("#u-name:invalid").wait_for()
    page.get_by_label("Name", exact=True).fill("ada")
    page.get_by_label("Password").fill("secret")
    page.get_by_label("Role in the management API").select_option("monitoring")
    _click(page, "Add", "dialog")
    row = page.locator("tbody tr", has_text="ada")
    row.get_by_role("button", name="Permissions…").click()
    page.get_by_label("Virtual host").select_option("/ojs")
    page.get_by_label("Configure: names that match").fill("")
    page.get_by_label("Write").fill("^orders")
    _click(page, "Save", "dialog")
    row.locator("text=/ojs configure nothing, write ^orders, read .*").wait_for()
    row.get_by_role("button", name="Delete…").click()
    _click(page, "Delete", "dialog")
    row.wait_for(state="detached")
    assert [one["name"] for one in server.ask("GET", "broker/users")] == ["guest"]


def test_a_policy_is_added_changed_and_deleted(shown: Shown, server: Server) -> None:
    page = shown("broker/policies", "Broker")
    page.locator("text=waybill broker policy set").wait_for()
    _click(page, "Add a policy…")
    page.get_by_label("Name", exact=True).fill("short")
    page.get_by_label("Virtual host").select_option("/ojs")
    page.get_by_label("Names that match").fill("^none$")
    page.get_by_label("Definition").fill("no JSON")
    _click(page, "Save", "dialog")
    page.locator(".toast.bad", has_text="Not JSON").wait_for()
    page.get_by_label("Definition").fill('{"max-length": 10}')
    _click(page, "Save", "dialog")
    row = page.locator("tbody tr", has_text="short")
    row.get_by_role("button", name="Edit…").click()
    page.get_by_label("Priority").fill("7")
    _click(page, "Save", "dialog")
    until(page, "document.querySelectorAll('tbody td')[3].innerText", "7")
    (found,) = server.ask("GET", "broker/policies")
    assert (found["pattern"], found["definition"], found["apply-to"]) == ("^none$", {"max-length": 10}, "queues")
    row.get_by_role("button", name="Delete…").click()
    _click(page, "Delete", "dialog")
    row.wait_for(state="detached")


def test_a_recommendation_of_the_pipeline_is_applied(shown: Shown, server: Server) -> None:
    server.ask("POST", "admin/pipeline/report", REPORT)
    page = shown("pipeline", "Pipeline")
    _click(page, "Apply")
    _click(page, "Apply", "dialog")
    page.locator(".tag", has_text="applied").wait_for()
    job = server.ask("GET", f"jobs/{server.push('advised.run', queue='advised')}")["job"]
    assert job["retry"]["max_attempts"] == 4
    _click(page, "Undo")
    page.locator(".tag", has_text="applied").wait_for(state="detached")


def test_a_workflow_is_cancelled(shown: Shown, server: Server) -> None:
    steps = [{"type": "flow.step", "args": [number], "options": {"queue": "flows"}} for number in range(2)]
    flow = server.ask("POST", "workflows", {"type": "chain", "name": "to cancel", "steps": steps})["id"]
    page = shown(f"workflow/{flow}", "to cancel")
    assert page.locator("path.edge").count() == 1
    _click(page, "Cancel")
    _click(page, "Cancel the workflow", "dialog")
    page.locator("h1 .s-cancelled").wait_for()


def test_a_job_is_enqueued_if_it_fits_its_schema(shown: Shown, server: Server) -> None:
    schema = {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "integer"}}}
    server.ask("POST", "schemas", {"job_type": "invoice.make", "version": "1.0.0", "mode": "strict", "schema": schema})
    page = shown("enqueue?type=invoice.make", "Enqueue a job")
    page.get_by_label("Arguments, a JSON array").fill("[{}]")
    page.locator("#f-hint", has_text="requires amount").wait_for()
    page.get_by_label("Arguments, a JSON array").fill('[{"amount": 7}]')
    page.locator("#f-hint", has_text="Passes a quick check").wait_for()
    page.get_by_label("Queue").fill("invoices")
    _click(page, "Enqueue")
    page.locator("h1", has_text="invoice.make").wait_for()
    assert page.url.rpartition("/")[2] in {one["id"] for one in server.ask("GET", "jobs?queue=invoices")["jobs"]}


def test_ten_thousand_rows_are_a_few_elements(shown: Shown, server: Server) -> None:
    many = [{"type": "many.rows", "args": [], "options": {"queue": "many"}} for _ in range(1000)]
    for _ in range(10):
        server.ask("POST", "jobs/batch", {"jobs": many})
    page = shown("jobs?queue=many", "Jobs")
    page.locator("h1", has_text="10,000").wait_for()
    search, reset = (page.locator(one).bounding_box() for one in ("#search", ".filters button"))
    assert (reset["x"] > search["x"], abs(reset["y"] - search["y"]) < 10) == (True, True)
    until(
        page,
        "(document.querySelector('.scroller').scrollTop = 1e9, document.querySelector('.rows').clientHeight >= 44000)",
    )
    assert page.locator(".rows .row").count() < 60


def test_who_scrolls_or_types_is_left_alone_by_changes(shown: Shown, server: Server) -> None:
    server.ask("POST", "jobs/batch", {"jobs": [{"type": "long.list", "args": [], "options": {"queue": "long"}}] * 100})
    page = shown("jobs?queue=long", "Jobs")
    page.locator("h1", has_text="100").wait_for()
    scroller = "document.querySelector('.scroller')"
    page.evaluate(f"{scroller}.scrollTop = 880")
    server.push("long.list", queue="long")
    page.locator("h1", has_text="101").wait_for()
    assert page.evaluate(f"{scroller}.scrollTop") == 880
    page = shown("enqueue", "Enqueue a job")
    page.get_by_label("Type").focus()
    page.keyboard.type("mail.")
    server.push("long.list", queue="long")
    # The page has been drawn again when its header is another element's text than what was put there.
    page.evaluate("document.querySelector('h1').append('!')")
    until(page, "document.querySelector('h1').textContent", "Enqueue a job")
    page.keyboard.type("send")
    assert page.get_by_label("Type").input_value() == "mail.send"


def test_changes_are_shown_as_they_happen(shown: Shown, server: Server) -> None:
    server.push("live.one", queue="live")
    page = shown("jobs?queue=live", "Jobs")
    page.locator(".live.live").wait_for()
    job = server.push("live.two", queue="live")
    page.locator(f"a[href='#/job/{job}']").wait_for()


def test_it_asks_where_there_is_no_stream(page: Any, server: Server) -> None:
    page.route("**/admin/changes", lambda route: route.fulfill(status=404, body="{}"))
    page.goto(f"{server.url}/ui/#/overview")
    page.locator(".live.polling").wait_for()


def test_the_theme_is_a_choice_that_stays(shown: Shown) -> None:
    page = shown("overview", "Overview")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.keyboard.press("t")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(background) != light
    page.reload()
    page.locator("h1").wait_for()
    assert page.evaluate(background) != light


@pytest.fixture
def guarded(tmp_path: Path) -> Any:
    """A server with keys: its address, and a key of each role."""
    keys = {role: add_key(tmp_path / "keys.json", role, role) for role in ("read", "operate", "admin")}
    process, url = start(["--memory", "--keys", "keys.json"], tmp_path)
    yield Server(url), keys
    stop(process)


def test_a_key_opens_what_its_role_may(page: Any, guarded: tuple[Server, dict[str, str]]) -> None:
    server, keys = guarded
    server.ask("POST", "jobs", {"type": "secret", "args": [], "options": {"queue": "q"}}, keys["operate"])
    page.goto(f"{server.url}/ui/")
    page.get_by_label("API key").fill("wb_wrong")
    page.get_by_role("button", name="Sign in").click()
    page.locator("[role=alert]", has_text="is unknown").wait_for()
    page.get_by_label("API key").fill(keys["read"])
    page.get_by_role("button", name="Sign in").click()
    page.locator("h1", has_text="Overview").wait_for()
    assert page.evaluate("localStorage.getItem('waybill-key')") is None
    page.goto(f"{server.url}/ui/#/queues/q")
    page.locator("h1", has_text="q").wait_for()
    assert page.locator("main .actions button").count() == 0
    assert page.locator("aside .enqueue").count() == 0
    page.get_by_label("Sign out").click()
    page.get_by_label("API key").fill(keys["admin"])
    page.get_by_label("Keep it on this device").check()
    page.get_by_role("button", name="Sign in").click()
    page.locator("main").get_by_role("button", name="Purge…").wait_for()
    assert page.evaluate("localStorage.getItem('waybill-key')") == keys["admin"]
