"""No tick is missed and none runs twice, whoever leads, is killed or has a wrong clock: in virtual time.

`python -m tests.ojs.cron.test_exactly_once` runs the full size: 10,000 days of 40 cron jobs.
"""

import sys
import time
from datetime import date

import pytest

from tests.ojs.cron.virtual_coordinators import World, plans, simulate
from waybill.ojs.coordinator.feature_fold import Rows
from waybill.ojs.cron.cron_fold import CRON, CronFold, CronRow
from waybill.ojs.spec.events import ReceivedEvent

SPRING, AUTUMN = date(2026, 3, 6), date(2026, 10, 23)
FULL_DAYS, FULL_CRON_JOBS = 10_000, 40


@pytest.mark.parametrize(("start", "seed"), [(SPRING, 1), (AUTUMN, 2)])
def test_each_tick_runs_once(start: date, seed: int) -> None:
    outcome = simulate(plans(12, seed), seed, start, 12)
    assert outcome.expected > 80
    assert outcome.kills > 20
    assert (outcome.missed, outcome.twice, outcome.unexpected) == ([], [], [])


def run_whatever_is_there(world: World) -> None:
    world.admits = False


def leave_claims_alone(world: World) -> None:
    world.pushes_again = False


class ForgetfulFold(CronFold):
    """A planted fault: what was decided is decided anew."""

    def fold(self, rows: Rows, event: ReceivedEvent) -> None:
        super().fold(rows, event)
        row = rows.get(CRON + event.subject, CronRow)
        if event.type == "cron.claimed" and row is not None and row.firings:
            row.until_ms -= 86_400_000
            row.until_key = ""
            rows.put(CRON + event.subject, row)


def test_planted_faults_are_found() -> None:
    made = plans(12, 1)
    assert simulate(made, 1, SPRING, 12, plant=run_whatever_is_there).twice
    assert simulate(made, 1, SPRING, 12, plant=leave_claims_alone).missed
    assert simulate(made, 1, SPRING, 4, cron_fold=ForgetfulFold).twice


def main() -> None:
    """Run the full size."""
    seed, days = int(sys.argv[1]) if len(sys.argv) > 1 else 1, int(sys.argv[2]) if len(sys.argv) > 2 else FULL_DAYS
    started = time.monotonic()
    outcome = simulate(
        plans(FULL_CRON_JOBS, seed), seed, date(2026, 1, 1), days, tell=lambda text: print(text, flush=True)
    )
    print(
        f"seed {seed}: {days} days, {FULL_CRON_JOBS} cron jobs, {outcome.expected} ticks, {outcome.kills} kills,"
        f" {time.monotonic() - started:.0f} s: {len(outcome.missed)} missed, {len(outcome.twice)} twice,"
        f" {len(outcome.unexpected)} unexpected"
    )
    raise SystemExit(bool(outcome.missed or outcome.twice or outcome.unexpected))


if __name__ == "__main__":
    main()
