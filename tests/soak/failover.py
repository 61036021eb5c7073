"""Kill the primary of PostgreSQL again and again under jobs, promote its replica, and see that no job is lost.

    python -m tests.soak.failover [--rounds 3] [--jobs 4000] [--event-partitions 2]

A broker, two coordinators and a server over HTTP run, each in a process of its own; all three share a database with two
hosts, and the partitions of the events. In each round jobs and chains are pushed and done; in every other one the
replica is cut off, so that it lacks what was confirmed last; the primary is killed; the replica is promoted; and a new
replica is made of it in the other's place. In the end each job has to be completed, once, by the database, its counts
and the server's answer; and all that the database says of a job has to be what a fold of all events from the first one
says. After a failure, the logs are kept, with what the database has.
"""

import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from tests.postgresql import USER, Server, directory_for_servers
from tests.postgresql import program as postgresql_program
from tests.program_environment import program_environment
from tests.rabbitmq import free_port
from waybill.ojs import Coordinator, Jobs, Retry, Topology, Worker, chain, current_job
from waybill.ojs.connection.contexts import Context, Contexts, save
from waybill.ojs.coordinator.job_store import JobDetail, JobStore
from waybill.ojs.coordinator.open_store import open_job_store
from waybill.ojs.workflow.handle import WorkflowHandle

PATIENCE_SECONDS: Final = 300.0
QUEUE: Final = "failover"
CONTEXT: Final = "failover"
BATCH: Final = 100
CHAIN_STEPS: Final = 2
"""Besides each batch, such a chain is pushed."""
FAILING_EVERY: Final = 20
"""The first attempt of each 20th job fails."""
RETRY: Final = Retry(max_attempts=3, initial_interval=timedelta(seconds=1), backoff_strategy="none", jitter=False)


class Pair:
    """A primary, its replica, and what connects to whichever is the primary."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.primary = Server(directory, "a").create().start(is_durable=True)
        self.primary.create_database("jobs")
        self.replica = self.primary.replica("b").start(is_durable=True)
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.replica.port}"
        self.url = f"postgresql://{USER}@{hosts}/jobs"

    def cut_off(self) -> None:
        """Let the replica get nothing more."""
        self.replica.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.replica.execute("SELECT pg_reload_conf()")
        self.replica.wait_for("SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")

    def fail_over(self) -> None:
        """Kill the primary, promote the replica, and make a new replica in the place of the primary."""
        dead = self.primary
        dead.kill()
        self.replica.promote()
        self.primary = self.replica
        shutil.rmtree(self._directory / dead.name)
        self.replica = self.primary.replica(dead.name, dead.port).start(is_durable=True)

    def dump(self, path: Path) -> None:
        """Write what the database has into a file, if it answers."""
        command = [postgresql_program("pg_dump") or "pg_dump", self.primary.dsn("jobs")]
        with path.open("wb") as file:
            subprocess.run(command, stdout=file, check=False)

    def kill(self) -> None:
        self.primary.kill()
        self.replica.kill()


@contextmanager
def program(directory: Path, name: str, *arguments: str) -> Iterator[None]:
    """Run `waybill` until the end; its log is in a file. Returns when it is ready."""
    command = [sys.executable, "-m", "waybill", *arguments]
    with (directory / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=program_environment())
    try:
        assert process.stdout is not None
        assert b"ready" in process.stdout.readline()
        yield
        assert process.poll() is None, f"{name} has ended"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


class Work:
    """The jobs and chains of all rounds, and how often each attempt ran. The worker is never killed."""

    def __init__(self, uri: str, topology: Topology) -> None:
        self.jobs = jobs = Jobs(uri, topology=topology, create_queues=True)
        self.partitions = topology.event_partitions
        self.runs: Counter[tuple[str, int]] = Counter()
        """By job and attempt."""
        self.ids: set[str] = set()
        """Of the jobs that are no steps of chains."""
        self.chains: list[WorkflowHandle[None]] = []

        @jobs.handler("failover.job", queue=QUEUE, retry=RETRY)
        async def handle(number: int) -> None:
            job = current_job()
            self.runs[job.id, job.attempt] += 1
            if number % FAILING_EVERY == 0 and job.attempt == 1:
                raise RuntimeError("as it was told to")

        self._handler = handle

    @property
    def count(self) -> int:
        """How many jobs have to be completed."""
        return len(self.ids) + CHAIN_STEPS * len(self.chains)

    async def push(self, count: int) -> None:
        for _ in range(count // BATCH):
            pushed = await self.jobs.push_many(self._handler.job(number) for number in range(BATCH))
            self.ids.update(job.id for job in pushed)
            steps = [self._handler.job(number + 1) for number in range(CHAIN_STEPS)]
            self.chains.append(await chain(*steps).push(self.jobs))
            await asyncio.sleep(0.15)

    def check(self) -> list[str]:
        """See that each attempt ran once, and each job; returns the ids of all jobs, also of chains."""
        twice = [attempt for attempt, count in self.runs.items() if count > 1]
        ran = {job_id for job_id, _ in self.runs}
        if twice or not ran >= self.ids or len(ran) != self.count:
            raise SystemExit(f"{len(ran)} of {self.count} jobs ran, {len(twice)} attempts more than once: {twice[:5]}")
        return sorted(ran)


async def wait_until_known(database: str, work: Work) -> float:
    """Wait until all jobs are completed by the database, and none is anything else; returns how long that took."""
    began = time.monotonic()
    wanted = {(QUEUE, "completed"): work.count}

    def counts() -> dict[tuple[str, str], int]:
        try:
            with open_job_store(database, event_partitions=work.partitions) as store:
                return {key: count for key, count in store.counts().items() if count}
        except Exception as error:  # noqa: BLE001 - it may be away
            logging.getLogger("waybill").debug("%s", error)
            return {}

    while (found := await asyncio.to_thread(counts)) != wanted:
        if time.monotonic() > began + PATIENCE_SECONDS:
            raise SystemExit(f"the database knows {found}, and not {wanted}")
        await asyncio.sleep(0.2)
    return time.monotonic() - began


def details_of(store: JobStore, ids: list[str]) -> dict[str, JobDetail]:
    """What a store says of each of these jobs, with its failed attempts."""
    return {job_id: found for job_id in ids if (found := store.detail(job_id)) is not None}


def check_server(ids: list[str], server: str) -> None:
    """See that some of the jobs are completed by the server."""
    for job_id in ids[:: max(1, len(ids) // 200)]:
        with urllib.request.urlopen(f"{server}/ojs/v1/jobs/{job_id}") as response:  # noqa: S310 - our own server
            found: dict[str, Any] = json.load(response)
        if found["job"]["state"] != "completed":
            raise SystemExit(f"the server says that job {job_id} is {found['job']['state']}")


async def check(work: Work, database: str, server: str) -> None:
    """See that the database says of each job what all events say when they are folded once, in memory."""
    ids = work.check()
    for one in work.chains:
        state = (await one.wait(timeout=PATIENCE_SECONDS)).state
        if state != "completed":
            raise SystemExit(f"workflow {one.id} is {state}")
    completed = {(QUEUE, "completed"): len(ids)}
    async with Coordinator(work.jobs, queues=[QUEUE]) as fresh, asyncio.timeout(PATIENCE_SECONDS):
        while await fresh.view.read(lambda store: store.counts()) != completed:
            await asyncio.sleep(0.2)
        wanted = await fresh.view.read(lambda store: details_of(store, ids))
    with open_job_store(database, event_partitions=work.partitions) as store:
        found = details_of(store, ids)
        counts = {key: count for key, count in store.counts().items() if count}
    wrong = [job_id for job_id in ids if found.get(job_id) != wanted[job_id]]
    if wrong or counts != completed:
        first = [f"{found.get(job_id)} instead of {wanted[job_id]}" for job_id in wrong[:1]]
        raise SystemExit(f"{len(wrong)} jobs are not as their events say: {first}; {counts}")
    check_server(ids, server)


async def run(pair: Pair, work: Work, server: str, rounds: int, jobs_a_round: int, console: Console) -> None:
    async with work.jobs, Worker(work.jobs, queues=[QUEUE], concurrency=20):
        for number in range(1, rounds + 1):
            await work.push(jobs_a_round // 2)
            if number % 2:
                await asyncio.to_thread(pair.cut_off)
            pushing = asyncio.create_task(work.push(jobs_a_round // 2))
            await asyncio.sleep(1)
            await asyncio.to_thread(pair.fail_over)
            await pushing
            seconds = await wait_until_known(pair.url, work)
            console.print(f"round {number}: {work.count:,} jobs completed, known {seconds:.1f} s after the last push")
        await check(work, pair.url, server)
    console.print(
        f"{work.count:,} jobs, {len(work.chains):,} chains among them, {work.runs.total():,} attempts, each run once;"
        f" {rounds} primaries killed, {work.partitions} event partitions: nothing lost, nothing folded twice"
    )


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 1000))
@click.option("--jobs", default=4000, show_default=True, type=click.IntRange(200, 1_000_000), help="In each round.")
@click.option("--event-partitions", default=2, show_default=True, type=click.IntRange(1, 64))
def main(*, rounds: int, jobs: int, event_partitions: int) -> None:
    console = Console()
    with directory_for_servers() as directory:
        try:
            soak(directory, rounds, jobs, event_partitions, console)
        except BaseException:
            logs = Path(tempfile.mkdtemp(prefix="waybill-soak-failover-"))
            for log in (*directory.glob("*.log"), *directory.glob("*.sql")):
                shutil.copy(log, logs)
            console.print(f"logs: {logs}")
            raise


def soak(directory: Path, rounds: int, jobs: int, event_partitions: int, console: Console) -> None:
    """Start the programs, and run all rounds. Raises SystemExit."""
    # The worker is in this process.
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(filename=directory / "worker.log", format=form, level=logging.INFO)
    with ExitStack() as stack:
        pair = Pair(directory)
        stack.callback(pair.kill)
        port, http = free_port(), free_port()
        uri = f"amqp://guest:guest@127.0.0.1:{port}/%2F"
        broker = ("broker", "--port", str(port), "--data-dir", str(directory / "broker"))
        stack.enter_context(program(directory, "broker", *broker))
        # Only a context tells commands the number of partitions.
        os.environ["XDG_CONFIG_HOME"] = str(directory / "settings")
        save(Contexts({CONTEXT: Context(uri, event_partitions=event_partitions)}))
        shared = ("--context", CONTEXT, "--database", pair.url)
        for name in ("one", "two"):
            stack.enter_context(program(directory, name, "coordinator", QUEUE, *shared))
        stack.enter_context(program(directory, "server", "serve", "--port", str(http), *shared))
        work = Work(uri, Topology(event_partitions=event_partitions))
        try:
            asyncio.run(run(pair, work, f"http://127.0.0.1:{http}", rounds, jobs, console))
        except BaseException:
            pair.dump(directory / "jobs.sql")
            raise
        for name in ("one", "two", "server"):
            log = (directory / f"{name}.log").read_text()
            lost, back = log.count("has lost committed changes"), log.count("is written again, after")
            console.print(f"{name}: found {lost} times that the database had lost something, {back} outages")


if __name__ == "__main__":
    main()
