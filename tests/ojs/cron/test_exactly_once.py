"""No tick is missed and none runs twice, whoever leads, is killed or has a wrong clock: in virtual time.

`make simulate-cron` runs the full size: 10,000 days of 40 cron jobs.
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
    """Run the full size: `[SEED [DAYS [START]]]`."""
    given = sys.argv[1:]
    seed, days = int(given[0]) if given else 1, int(given[1]) if given[1:] else FULL_DAYS
    start = date.fromisoformat(given[2]) if given[2:] else date(2026, 1, 1)
    started = time.process_time()
    made = plans(FULL_CRON_JOBS, seed, rare=True)
    outcome = simulate(made, seed, start, days, tell=lambda text: print(text, flush=True))
    print(
        f"seed {seed}: {days} days from {start}, {FULL_CRON_JOBS} cron jobs, {outcome.expected} ticks,"
        f" {outcome.kills} kills: {len(outcome.missed)} missed, {len(outcome.twice)} twice,"
        f" {len(outcome.unexpected)} unexpected; {time.process_time() - started:.0f} s of CPU"
    )
    raise SystemExit(bool(outcome.missed or outcome.twice or outcome.unexpected))


if __name__ == "__main__":
    main()
