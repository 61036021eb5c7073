"""kill -9 of pushers, workers and the broker: one job of a key at a time, and none blocks its key for ever.

`KILLS=100` kills more often than the suite has time for.
"""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.client.breaking import until
from tests.ojs.broker_process import BrokerProcess
from tests.ojs.control.unique_program import KEYS, program, push
from tests.program_environment import program_environment
from waybill.ojs import Worker

KILLS = int(os.environ.get("KILLS", "3"))
LINES = 20
FREE_SECONDS = 60
ERRORS = None if "KILLS" in os.environ else subprocess.DEVNULL


@pytest.fixture
def broker(repository: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(repository, tmp_path / "data")
    broker.start()
    yield broker
    broker.close()


@pytest.mark.ours
async def test_jobs_stay_unique_whoever_is_killed(broker: BrokerProcess, repository: Path, tmp_path: Path) -> None:
    log, uri = tmp_path / "log", broker.uri("/ojs")
    log.touch()
    environment = program_environment()

    def start(role: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.ojs.control.unique_program", role, uri, str(log)]
        return subprocess.Popen(command, cwd=repository, env=environment, stderr=ERRORS)

    with ExitStack() as stack:
        running = {role: start(role) for role in ("pusher", "worker")}

        def end(role: str) -> None:
            running[role].kill()
            running[role].wait()

        for role in running:
            stack.callback(end, role)
        rolls = random.Random(18)
        for number in range(KILLS):
            seen = log.read_text().count("\n") + rolls.randrange(LINES)
            await until(partial(has_more_than, log, seen), 60)
            victim = ("worker", "pusher", "broker")[number % 3]
            if victim == "broker":
                broker.kill()
                broker.start()
            else:
                end(victim)
                running[victim] = start(victim)
    descriptor = os.open(log, os.O_APPEND | os.O_WRONLY)
    jobs = program(uri, descriptor)
    # Every key is free again, once what the killed ones have left is done.
    async with jobs, Worker(jobs, concurrency=KEYS) as worker:
        async with asyncio.timeout(FREE_SECONDS):
            for key in range(KEYS):
                # A job is counted as completed a moment before its key is free.
                while await push(jobs, key) is None:
                    await asyncio.sleep(0.01)
        await until(lambda: log.read_text().splitlines()[-1].startswith("end") and worker.running_count == 0)
    os.close(descriptor)
    check(log.read_text().splitlines())


def has_more_than(log: Path, lines: int) -> bool:
    return log.read_text().count("\n") > lines


def check(lines: list[str]) -> None:
    """A job of a key begins only when the one before has ended, and does not run again once the next has begun."""
    present: dict[str, str] = {}
    ended: set[str] = set()
    left: set[str] = set()
    for line in lines:
        what, key, job = line.split()
        other = present.get(key)
        if other != job:
            assert other is None or other in ended, f"{job} began while {other} was there"
            assert job not in left, f"{job} ran again when another was there"
            if other is not None:
                left.add(other)
            present[key] = job
        if what == "end":
            ended.add(job)
    assert len(ended) >= KEYS
