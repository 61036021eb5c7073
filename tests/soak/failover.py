"""Kill the primary of PostgreSQL again and again under jobs, promote its replica, and see that no job is lost.

    python -m tests.soak.failover [--rounds 3] [--jobs 4000]

A broker, two coordinators and a server over HTTP run, each in a process of its own; all three share a database with two
hosts. In each round jobs are pushed and done; in every other one the replica is cut off, so that it lacks what was
confirmed last; the primary is killed; the replica is promoted; and a new replica is made of it in the other's place. In
the end each job has to be completed, once, by the database, its counts and the server's answer.
"""

import asyncio
import json
import logging
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tests.postgresql import USER, Server, directory_for_servers
from tests.program_environment import program_environment
from tests.rabbitmq import free_port
from waybill.ojs import Jobs, Worker
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.open_store import open_job_store

PATIENCE_SECONDS = 120.0
QUEUE = "failover"


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


async def wait_until_known(database: str, count: int) -> float:
    """Wait until so many jobs are completed by the database; returns how long that took."""
    began = time.monotonic()

    def completed() -> int:
        try:
            with open_job_store(database) as store:
                return store.counts().get((QUEUE, "completed"), 0)
        except Exception as error:  # noqa: BLE001 - it may be away
            logging.getLogger("waybill").debug("%s", error)
            return 0

    while (found := await asyncio.to_thread(completed)) != count:
        if time.monotonic() > began + PATIENCE_SECONDS:
            raise SystemExit(f"{found} jobs of {count} are completed by the database")
        await asyncio.sleep(0.2)
    return time.monotonic() - began


def check(store: JobStore, ids: list[str], server: str) -> None:
    """See that each job is completed, by the database and by the server."""
    wrong = [job.id for job in store.many(ids) if job.state != "completed"]
    missing = store.missing(ids)
    if wrong or missing:
        raise SystemExit(f"{len(wrong)} jobs are not completed and {len(missing)} are not known")
    for job_id in ids[:: max(1, len(ids) // 200)]:
        with urllib.request.urlopen(f"{server}/ojs/v1/jobs/{job_id}") as response:  # noqa: S310 - our own server
            found: dict[str, Any] = json.load(response)
        if found["job"]["state"] != "completed":
            raise SystemExit(f"the server says that job {job_id} is {found['job']['state']}")


async def run(pair: Pair, uri: str, server: str, rounds: int, jobs_a_round: int, console: Console) -> None:
    ids: list[str] = []
    runs: list[int] = []
    async with Jobs(uri, create_queues=True) as jobs:

        @jobs.handler("failover.job", queue=QUEUE)
        async def handle(number: int) -> None:
            runs.append(number)

        async def push(count: int) -> None:
            for _ in range(count // 100):
                pushed = await jobs.push_many(handle.job(number) for number in range(100))
                ids.extend(job.id for job in pushed)
                await asyncio.sleep(0.15)

        async with Worker(jobs, queues=[QUEUE], concurrency=20):
            for number in range(1, rounds + 1):
                await push(jobs_a_round // 2)
                if number % 2:
                    await asyncio.to_thread(pair.cut_off)
                pushing = asyncio.create_task(push(jobs_a_round // 2))
                await asyncio.sleep(1)
                await asyncio.to_thread(pair.fail_over)
                await pushing
                seconds = await wait_until_known(pair.url, len(ids))
                console.print(f"round {number}: {len(ids):,} jobs completed, known {seconds:.1f} s after the last push")
    with open_job_store(pair.url) as store:
        await asyncio.to_thread(check, store, ids, server)
    console.print(f"{len(ids):,} jobs, {len(runs):,} runs, {rounds} primaries killed: nothing lost")


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 1000))
@click.option("--jobs", default=4000, show_default=True, type=click.IntRange(200, 1_000_000), help="In each round.")
def main(*, rounds: int, jobs: int) -> None:
    console = Console()
    with ExitStack() as stack:
        directory = stack.enter_context(directory_for_servers())
        pair = Pair(directory)
        stack.callback(pair.kill)
        port, http = free_port(), free_port()
        uri = f"amqp://guest:guest@127.0.0.1:{port}/%2F"
        broker = ("broker", "--port", str(port), "--data-dir", str(directory / "broker"))
        stack.enter_context(program(directory, "broker", *broker))
        database = ("--uri", uri, "--database", pair.url)
        for name in ("one", "two"):
            stack.enter_context(program(directory, name, "coordinator", QUEUE, *database))
        stack.enter_context(program(directory, "server", "serve", "--port", str(http), *database))
        asyncio.run(run(pair, uri, f"http://127.0.0.1:{http}", rounds, jobs, console))
        for name in ("one", "two", "server"):
            log = (directory / f"{name}.log").read_text()
            lost, back = log.count("has lost committed changes"), log.count("is written again, after")
            console.print(f"{name}: found {lost} times that the database had lost something, {back} outages")


if __name__ == "__main__":
    main()
