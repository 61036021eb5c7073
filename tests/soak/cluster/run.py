"""Pushes jobs and chains to the cluster while its nodes go and come, and counts what has become of them."""

import asyncio
import functools
import itertools
import random
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg

from tests.soak.cluster.house import DATABASE, ClusterHouse
from tests.soak.cluster.programs import CRON, STEPS, TICK, make_cluster_jobs
from tests.soak.jobs.house import QUEUE
from tests.soak.jobs.run import JobLostError, Run
from waybill import JobsError
from waybill.client import ClientError
from waybill.ojs import Jobs, chain
from waybill.ojs.workflow.numbering import new_workflow_id

T = TypeVar("T")

CHAINS_A_BATCH: Final = 2
END_SECONDS: Final = 300
STATES: Final = "select id, state from waybill_job where type = 'soak.effect'"


class ClusterRun(Run):
    """A run with chains and a clock; two coordinators have to agree, or share a database."""

    def __init__(self, house: ClusterHouse, directory: Path, jobs: int, chance: random.Random) -> None:
        super().__init__(house, directory, jobs, chance)
        self._cluster_house = house
        self._chains: dict[int, str] = {}
        self.ticks = 0

    def _make_jobs(self) -> Jobs:
        return make_cluster_jobs(self._house.uri, QUEUE, event_partitions=self._cluster_house.event_partitions)

    def _query(self, sql: str) -> list[tuple[object, ...]]:
        database = self._cluster_house.database
        if database is None:
            return super()._query(sql)
        try:
            with psycopg.connect(database.dsn(DATABASE)) as connection:
                return connection.execute(sql.encode()).fetchall()
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            return []  # It is down, or the coordinators have not made the table yet.

    async def _push_besides(self, jobs: Jobs, batch: int) -> None:
        step = jobs.handlers["soak.step"]
        for number in range(batch * CHAINS_A_BATCH, (batch + 1) * CHAINS_A_BATCH):
            steps = [step.job(number, index) for index in range(STEPS)]
            workflow = new_workflow_id()
            await again(functools.partial(chain(*steps).push, jobs, id=workflow))
            self._chains[number] = workflow

    async def _settle(self) -> None:
        """Stop the clock, and wait for its last tick, the last chain, and the second coordinator."""
        jobs = self._make_jobs()
        try:
            await again(lambda: jobs.crons.pause(CRON))
            async with asyncio.timeout(END_SECONDS):
                while True:
                    self._house.restart_the_dead()
                    info = await again(lambda: jobs.crons.get(CRON))
                    fired = all(firing.state in {"completed", "skipped"} for firing in info.firings)
                    if fired and not self._unfinished_besides() and self._second_has_all():
                        break
                    await asyncio.sleep(0.5)
            self.ticks = info.run_count
        finally:
            await jobs.close()
        self.check_besides()

    def _unfinished_besides(self) -> bool:
        rows = self._query(
            "select count(*) from waybill_job where type in ('soak.step', 'soak.tick') and state != 'completed'"
        )
        steps = self._query("select count(*) from waybill_job where type = 'soak.step'")
        return rows != [(0,)] or steps != [(STEPS * len(self._chains),)]

    def _second_has_all(self) -> bool:
        """Whether both coordinators say the same of each job, if each has a store of its own."""
        if self._cluster_house.database is not None:
            return True
        with closing(sqlite3.connect(f"file:{self._cluster_house.second_store}?mode=ro", uri=True)) as connection:
            return sorted(connection.execute(STATES).fetchall()) == sorted(self._query(STATES))

    def check_besides(self) -> None:
        """Raise JobLostError unless each step and each tick was done by one job, and none is missing."""
        done: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for path in self._directory.glob("effects-*.sqlite"):
            with closing(sqlite3.connect(path)) as connection:
                for what, subject, job in connection.execute("select what, subject, job from done"):
                    done[what][subject].add(job)
        for what in ("step", "tick"):
            for subject, by in done[what].items():
                if len(by) != 1:
                    raise JobLostError(f"{what} {subject} was done by {len(by)} jobs")
        wanted = {f"{number}.{index}" for number in self._chains for index in range(STEPS)}
        if done["step"].keys() != wanted:
            raise JobLostError(f"{len(done['step'])} steps of chains were done, {len(wanted)} were pushed")
        times = sorted(datetime.fromisoformat(subject) for subject in done["tick"])
        for before, after in itertools.pairwise(times):
            if after - before != TICK:
                raise JobLostError(f"no tick between {before} and {after}")
        if len(times) != self.ticks:
            raise JobLostError(f"{self.ticks} ticks have fired, {len(times)} were done")

    @property
    def _bond(self) -> str:
        return "agree" if self._cluster_house.database is None else "share a database"

    def __str__(self) -> str:
        return (
            f"{self.figures}; {len(self._chains):,} chains of {STEPS} steps, each step by one job; "
            f"{self.ticks:,} ticks every {TICK.seconds} s, none missing, each by one job; two coordinators {self._bond}"
        )


async def again(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Try for a while what a node that goes makes fail."""
    for _ in range(120):
        try:
            return await call()
        except (ClientError, JobsError, OSError):
            await asyncio.sleep(0.5)
    return await call()
