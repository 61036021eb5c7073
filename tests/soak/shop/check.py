"""Whether everything in the shop has ended exactly as it should."""

import itertools
import sqlite3
from collections import defaultdict
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from examples.shop.front import WIDTHS
from tests.soak.shop.customers import Report

TICK: Final = timedelta(seconds=2)


class WrongEndError(AssertionError):
    """A promise about jobs was broken."""


class Done:
    """What the handlers have noted: for each thing that was done, the jobs that did it."""

    def __init__(self, ledger: Path) -> None:
        self.jobs: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.repeated = 0
        with closing(sqlite3.connect(ledger)) as connection:
            for what, subject, job, runs in connection.execute("select what, subject, job, runs from done"):
                self.jobs[what][subject].add(job)
                self.repeated += runs > 1

    def once(self, what: str, subject: object) -> None:
        """One job has done it, in however many attempts."""
        count = len(self.jobs[what].get(str(subject), ()))
        if count != 1:
            raise WrongEndError(f"{what} {subject}: done by {count} jobs")


def check(report: Report, ledger: Path, store: Path) -> str:
    """Raise WrongEndError for the first thing that is not as it should be; return what there was.

    Nothing may be on its way any more: see `unfinished`.
    """
    done = Done(ledger)
    if report.troubles:
        raise WrongEndError(f"{len(report.troubles)} customers are not content: {report.troubles[:5]}")
    for number, invoice in report.invoices.items():
        if invoice != f"R{number:06}":
            raise WrongEndError(f"order {number} has invoice {invoice}")
        for what in ("checked", "charged", "invoice"):
            done.once(what, number)
    _check_pictures(report, done)
    for number, price in report.prices.items():
        if float(price) != round(3.80 * number, 2):
            raise WrongEndError(f"the price of {number} teas is {price}")
    for mail, state in report.mails.items():
        _completed(mail, state)
        done.once("mail", mail)
    for number, state in report.calls.items():
        _completed(f"call {number}", state)
        done.once("notified", f"acme {number}")
    for customer, state in report.reminders.items():
        if state == "completed":
            done.once("reminded", customer)
        elif state != "cancelled":
            raise WrongEndError(f"the reminder of {customer} is {state}")
    ticks = _check_ticks(report, done)
    if left := unfinished(store):
        raise WrongEndError(f"jobs that have not ended well: {left}")
    return (
        f"{len(report.invoices):,} orders, {len(report.galleries):,} galleries, {len(report.prices):,} prices, "
        f"{len(report.mails):,} mails, {len(report.calls):,} calls, {len(report.reminders):,} reminders, "
        f"{ticks:,} ticks: each once; {done.repeated:,} attempts ran twice"
    )


def _completed(what: str, state: str) -> None:
    if state != "completed":
        raise WrongEndError(f"{what} is {state}")


def _check_pictures(report: Report, done: Done) -> None:
    for gallery, count in report.galleries.items():
        pictures = 1 + int(gallery.removeprefix("gallery")) % 7
        if count != pictures * len(WIDTHS):
            raise WrongEndError(f"{gallery} has {count} pictures")
        done.once("gallery", f"{gallery} {count}")
        for index in range(pictures):
            for width in WIDTHS:
                done.once("resized", f"{gallery}-{index} {width}")
        done.once("preview", gallery)


def _check_ticks(report: Report, done: Done) -> int:
    """No tick is missing between the first and the last one, and each was one job."""
    times = sorted(datetime.fromisoformat(subject) for subject in done.jobs["counted"])
    for subject in done.jobs["counted"]:
        done.once("counted", subject)
    for before, after in itertools.pairwise(times):
        if after - before != TICK:
            raise WrongEndError(f"no tick between {before} and {after}")
    if len(times) != report.firings:
        raise WrongEndError(f"{report.firings} ticks have fired, {len(times)} were done")
    return len(times)


def has_begun(ledger: Path) -> bool:
    """Whether some handler has done something."""
    if not ledger.exists():
        return False
    with closing(sqlite3.connect(ledger)) as connection:
        return bool(connection.execute("select count(*) from sqlite_master").fetchone()[0])


def unfinished(store: Path) -> list[tuple[str, str, int]]:
    """Return the jobs that are neither completed nor cancelled: type, state, how many.

    The place of a unique job whose push has failed counts until it expires: then it is nobody's.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        return connection.execute(
            "select type, state, count(*) from waybill_job where state not in ('completed', 'cancelled') "
            "and not (state = 'pending' and enqueued_at is null and visible_until < ?) group by 1, 2",
            (now,),
        ).fetchall()
