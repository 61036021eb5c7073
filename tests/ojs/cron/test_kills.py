"""Coordinators as processes, killed by kill -9 while they lead: every tick runs once, on both brokers."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.client.breaking import until
from tests.program_environment import program_environment
from waybill.ojs import CronJob, Jobs, Worker, current_job

COORDINATORS = 3
TICKS_BETWEEN_KILLS = 2


@pytest.fixture
def coordinators(broker_uri: str, repository: Path, queue_name: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Three coordinators, the first of which leads."""
    environment = program_environment()
    arguments = [sys.executable, "-m", "waybill", "coordinator", queue_name, "--uri", broker_uri]
    with ExitStack() as stack:

        def start() -> subprocess.Popen[bytes]:
            command = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
            process = stack.enter_context(command)
            stack.callback(process.kill)
            return process

        first = start()
        wait_until_ready(first)
        others = [start() for _ in range(COORDINATORS - 1)]
        for process in others:
            wait_until_ready(process)
        yield [first, *others]


def wait_until_ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"


async def test_no_tick_is_missed_and_none_runs_twice(
    broker_uri: str, queue_name: str, coordinators: list[subprocess.Popen[bytes]]
) -> None:
    jobs = Jobs(broker_uri)
    runs: Counter[str] = Counter()

    @jobs.handler("cron.tick", queue=queue_name)
    async def tick() -> None:
        runs[str(current_job().meta["cron_triggered_at"])] += 1

    name = f"kills-{queue_name}"
    async with jobs, Worker(jobs, queues=[queue_name]):
        options: dict[str, object] = {"queue": queue_name}
        job = CronJob(name=name, cron="* * * * * *", type="cron.tick", options=options, missed_policy="all")
        assert await jobs.crons.register(job) == "created"
        for process in coordinators[:-1]:
            wanted = len(runs) + TICKS_BETWEEN_KILLS
            await until(lambda wanted=wanted: len(runs) >= wanted, 60)  # type: ignore[misc]
            process.send_signal(signal.SIGKILL)
        wanted = len(runs) + TICKS_BETWEEN_KILLS
        await until(lambda: len(runs) >= wanted, 60)
        await jobs.crons.pause(name)
        found = await jobs.crons.get(name)
        await jobs.crons.remove(name)
        fired = [one.scheduled_at for one in found.firings if one.state != "skipped"]
        await until(lambda: set(fired) <= set(runs), 60)
    assert set(runs.values()) == {1}
    ticks = sorted(runs)
    first, last = (datetime.fromisoformat(text) for text in (ticks[0], ticks[-1]))
    assert last - first == timedelta(seconds=len(ticks) - 1)
    assert found.run_count == len(ticks)
