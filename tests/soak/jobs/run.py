"""Pushes, kills, waits for the end, and counts."""

import asyncio
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.jobs.house import QUEUE, House
from tests.soak.jobs.programs import RETRY, always_fails, make_jobs
from tests.soak.phases import Phases
from waybill.client import ClientError
from waybill.ojs import Jobs

BATCH = 500
LOST = "WorkerLost"


class JobLostError(AssertionError):
    """A promise about jobs was broken."""


@dataclass
class Figures:
    """What came of a run."""

    jobs: int
    seconds: float = 0.0
    kills: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    states: Counter[str] = field(default_factory=Counter)
    lost_attempts: int = 0
    """Jobs whose last failure is the loss of their worker."""
    effects: int = 0
    repeated_attempts: int = 0
    """Pairs of job and attempt whose handler ran more than once."""
    most_runs: int = 0
    longest_wait_seconds: float = 0.0
    """From the start of an attempt to the start of the next one; a second of it is wanted."""

    def __str__(self) -> str:
        kills = ", ".join(f"{count} of {what}" for what, count in self.kills.items())
        states = ", ".join(f"{count:,} {state}" for state, count in sorted(self.states.items()))
        return (
            f"{self.jobs:,} jobs in {self.seconds:.0f} s; kills: {kills}, restarts after a failed start: "
            f"{self.restarts}; ends: {states}; "
            f"handler runs: {self.effects:,}, of them {self.repeated_attempts:,} attempts run more than once "
            f"(at most {self.most_runs} times); longest wait for the next attempt: "
            f"{self.longest_wait_seconds:.1f} s; jobs given up because their workers were killed: {self.lost_attempts}"
        )


class Run:
    """One run against one broker."""

    def __init__(self, house: House, directory: Path, jobs: int, chance: random.Random) -> None:
        self._house = house
        self._directory = directory
        self._chance = chance
        self._pushed: dict[str, int] = {}
        self._last_progress = (-1, -1)
        self._last_progress_at = 0.0
        self.figures = Figures(jobs)
        self.phases = Phases()

    async def go(self, pause: tuple[float, float], patience: float, on_step: Callable[[str], None]) -> Figures:
        """Push all jobs and kill until they are pushed, then wait for their ends. Raises JobLostError."""
        started = time.monotonic()
        phase = self.phases.phase
        with phase("start"):
            await asyncio.to_thread(self._house.start)
        pushing = asyncio.create_task(self._push())
        try:
            while not self._may_end(pushing):
                with phase("between faults"):
                    await asyncio.sleep(self._chance.uniform(*pause))
                with phase("until work goes on"):
                    await self._wait_for_work(patience)
                await self._disturb(patience, on_step)
            with phase("after the last fault"):
                while (ended := self._progress(patience)) < self.figures.jobs:
                    on_step(f"all pushed, {ended:,} ended")
                    self._house.restart_the_dead()
                    await asyncio.sleep(0.5)
        finally:
            pushing.cancel()
            await asyncio.gather(pushing, return_exceptions=True)
        self.figures.seconds = time.monotonic() - started
        with phase("settle"):
            await self._settle()
        self.figures.kills = dict(self._house.kills)
        self.figures.restarts = self._house.restarts
        with phase("check"):
            self._check_store()
            self._check_effects()
        return self.figures

    async def _disturb(self, patience: float, on_step: Callable[[str], None]) -> None:
        started = time.monotonic()
        what = await asyncio.to_thread(self._house.kill_something)
        self.phases.add(what, time.monotonic() - started)
        self._house.restart_the_dead()
        seconds = time.monotonic() - started
        counts = f"{len(self._pushed):,} pushed, {self._progress(patience):,} ended"
        on_step(f"killed a {what} ({seconds:.0f} s); {counts}")

    def _may_end(self, pushing: asyncio.Task[None]) -> bool:
        """Everything is pushed, most of it is done, and each kind of process was killed."""
        if pushing.done():
            pushing.result()
        done = pushing.done() and self._ended() >= 0.9 * self.figures.jobs
        return done and all(self._house.kills.values())

    def _make_jobs(self) -> Jobs:
        return make_jobs(self._house.uri, QUEUE)

    async def _push(self) -> None:
        jobs = self._make_jobs()
        effect = jobs.handlers["soak.effect"]
        # The first connection has nobody yet who would connect again.
        while True:
            try:
                await jobs.__aenter__()
                break
            except ClientError:
                await asyncio.sleep(0.2)
        try:
            for start in range(0, self.figures.jobs, BATCH):
                numbers = range(start, min(start + BATCH, self.figures.jobs))
                envelopes = await jobs.push_many(effect.job(number) for number in numbers)
                self._pushed |= {envelope.id: number for envelope, number in zip(envelopes, numbers, strict=True)}
                await self._push_besides(jobs, start // BATCH)
        finally:
            await jobs.close()

    async def _push_besides(self, jobs: Jobs, batch: int) -> None:
        """What a run asks for besides, after each batch."""

    async def _settle(self) -> None:
        """Wait for the end of what was asked for besides."""

    def _query(self, sql: str) -> list[tuple[object, ...]]:
        if not self._house.store.exists():
            return []
        with closing(sqlite3.connect(f"file:{self._house.store}?mode=ro", uri=True)) as connection:
            try:
                return connection.execute(sql).fetchall()
            except sqlite3.OperationalError:
                return []  # The coordinator has not made the table yet.

    def _ended(self) -> int:
        rows = self._query(
            "select count(*) from waybill_job where type = 'soak.effect' and state in ('completed', 'discarded')"
        )
        return int(str(rows[0][0])) if rows else 0

    async def _wait_for_work(self, patience: float) -> None:
        """Wait until a job has ended since the last kill: what never gets to work has nothing to lose."""
        before = self._ended()
        while before < self.figures.jobs and self._progress(patience) == before:
            self._house.restart_the_dead()
            await asyncio.sleep(0.25)

    def _progress(self, patience: float) -> int:
        """How many jobs have ended. Raises JobLostError if none was pushed and none has ended for too long."""
        ended = self._ended()
        if (ended, len(self._pushed)) != self._last_progress:
            self._last_progress = ended, len(self._pushed)
            self._last_progress_at = time.monotonic()
        elif ended < self.figures.jobs and time.monotonic() - self._last_progress_at > patience:
            raise JobLostError(f"{len(self._pushed) - ended} jobs do not end: {self._unfinished()}")
        return ended

    def _unfinished(self) -> Sequence[object]:
        known = {str(row[0]): row for row in self._query("select id, state, attempt, error from waybill_job")}
        return [
            known.get(job, f"{job}: unknown")
            for job in self._pushed
            if job not in known or known[job][1] not in {"completed", "discarded"}
        ][:10]

    def _check_store(self) -> None:
        """Each job has one row, and the end that its handler makes inevitable."""
        rows = self._query("select id, state, error from waybill_job where type = 'soak.effect'")
        states = {str(job): str(state) for job, state, _ in rows}
        if len(rows) != len(states) or states.keys() != self._pushed.keys():
            raise JobLostError(f"{len(rows)} rows in the store for {len(self._pushed)} jobs")
        self.figures.states = Counter(states.values())
        lost = {str(job) for job, _, error in rows if LOST in str(error)}
        for job, number in self._pushed.items():
            if always_fails(number) and states[job] != "discarded":
                raise JobLostError(f"{job} has failed in each attempt and is {states[job]}")
            if not always_fails(number) and states[job] == "discarded":
                if job not in lost:
                    raise JobLostError(f"{job} was discarded for no reason")
                self.figures.lost_attempts += 1

    def _check_effects(self) -> None:
        """Each handler has had its effect; how often one and the same attempt had it twice."""
        runs: Counter[tuple[str, int]] = Counter()
        begun: dict[tuple[str, int], float] = {}
        for path in self._directory.glob("effects-*.sqlite"):
            with closing(sqlite3.connect(path)) as connection:
                for job, attempt, at, count in connection.execute("select job, attempt, at, runs from effect"):
                    runs[job, attempt] += count
                    begun[job, attempt] = min(at, begun.get((job, attempt), at))
        touched = {job for job, _ in runs}
        missing = self._pushed.keys() - touched
        if len(missing) > self.figures.lost_attempts:
            raise JobLostError(f"{len(missing)} jobs never ran, such as {sorted(missing)[:3]}")
        if touched - self._pushed.keys():
            raise JobLostError("jobs ran that nobody has pushed")
        if max(attempt for _, attempt in runs) > RETRY.max_attempts:
            raise JobLostError("a job ran more often than its policy allows")
        self.figures.effects = runs.total()
        self.figures.repeated_attempts = sum(count > 1 for count in runs.values())
        self.figures.most_runs = max(runs.values())
        waits = (at - begun[job, attempt - 1] for (job, attempt), at in begun.items() if (job, attempt - 1) in begun)
        self.figures.longest_wait_seconds = max(waits, default=0.0)
