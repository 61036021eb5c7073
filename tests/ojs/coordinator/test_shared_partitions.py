"""Two coordinators share the partitions of an event stream: jobs, workflows, unique and cron jobs end once."""

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.client.breaking import until
from tests.ojs.coordinator.partitions_program import PARTITIONS, Application
from tests.ojs.databases import make_database
from tests.program_environment import program_environment
from waybill.ojs import Coordinator, DuplicateJob, Unique, chord
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.spec.event_partitions import partition_of_job

ONE_AT_A_TIME = Unique(keys=("type", "args"), states=("pending", "available", "active", "completed"))
KEYS = 12
KILLS = 3


async def test_two_coordinators_share_the_work_and_answer_for_each_other(
    broker_uri: str, queue_name: str, postgresql: str
) -> None:
    database = make_database(postgresql)
    application = Application(broker_uri, f"{queue_name}.", queue_name)
    jobs = application.jobs
    first, second = application.coordinator(database), application.coordinator(database)
    async with jobs, first, second, application.worker():
        await until(lambda: _owned(first) != _owned(second) and _owned(first) | _owned(second) == {0, 1})
        pushed = [await jobs.push("parts.plain", [number]) for number in range(40)]
        assert {partition_of_job(one.id, PARTITIONS) for one in pushed} == {0, 1}
        keys = await asyncio.gather(*(_reserve(application, number % KEYS) for number in range(3 * KEYS)))
        handle = await chord([application.plain.job(one) for one in range(30)], application.total.job()).push(jobs)
        assert (await handle.wait(timeout=60)).state == "completed"
        assert await handle.result() == sum(range(30))
        for one in pushed:
            # Whoever answers knows what the other has folded.
            await _until_state(application, one.id, "completed")
        assert Counter(keys) == {True: KEYS, False: 2 * KEYS}
        for coordinator in (first, second):
            infos = await coordinator.view.many([one.id for one in pushed])
            assert Counter(info.state for info in infos) == {"completed": len(pushed)}
            assert coordinator.skipped_events == 0
    assert max(Counter(application.ran).values()) == 1


async def test_each_job_ends_once_though_coordinators_are_killed(
    waybill_uri: str, queue_name: str, postgresql: str, repository: Path
) -> None:
    database = make_database(postgresql)
    prefix = f"{queue_name}."
    command = [sys.executable, "-m", "tests.ojs.coordinator.partitions_program"]
    arguments = [waybill_uri, database, prefix, queue_name]

    def kill(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def start_now() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*command, *arguments], cwd=repository, env=program_environment(), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    async def start() -> subprocess.Popen[str]:
        return await asyncio.to_thread(start_now)

    application = Application(waybill_uri, prefix, queue_name)
    jobs = application.jobs
    processes = [await start(), await start()]
    try:
        async with jobs, application.worker():
            ids: list[str] = []
            handles = []
            keys: list[bool] = []
            for number in range(KILLS):
                ids += [one.id for one in [await jobs.push("parts.plain", [one]) for one in range(60)]]
                shape = chord([application.plain.job(one) for one in range(20)], application.total.job())
                handles.append(await shape.push(jobs))
                reserving = [asyncio.ensure_future(_reserve(application, key)) for key in range(KEYS)]
                victim = number % 2
                kill(processes[victim])
                ids += [one.id for one in [await jobs.push("parts.plain", [one]) for one in range(60)]]
                keys += await asyncio.gather(*reserving)
                processes[victim] = await start()
            for handle in handles:
                assert (await handle.wait(timeout=90)).state == "completed"
                assert await handle.result() == sum(range(20))
            await until(lambda: sum(name == "tick" for name, _ in application.ran) >= 3, 60)
            async with application.coordinator(database) as third:
                await until(lambda: third.view.partition_count == PARTITIONS)
                async with asyncio.timeout(60):
                    while await _open_jobs(third, ids):
                        await asyncio.sleep(0.1)
                assert third.skipped_events == 0
    finally:
        for process in processes:
            kill(process)
    assert max(Counter(application.ran).values()) == 1, "no worker was killed, so no job runs twice"
    singles = Counter(name for name, _ in application.ran if name.startswith("single"))
    assert len(singles) == KEYS
    assert set(singles.values()) == {1}, "a key is reserved once, also while coordinators are killed"
    assert sum(keys) == KEYS


def _owned(coordinator: Coordinator) -> set[int]:
    return {one.partition for one in coordinator.view._streams if one.is_owner}


async def _reserve(application: Application, key: int) -> bool:
    try:
        await application.jobs.push("parts.single", [key], unique=ONE_AT_A_TIME)
    except DuplicateJob:
        return False
    return True


async def _until_state(application: Application, job_id: str, wanted: str) -> None:
    async with asyncio.timeout(60):
        while True:
            found = await application.jobs.info(job_id, application.queue)
            if found is not None and found.state == wanted:
                return
            await asyncio.sleep(0.05)


async def _open_jobs(coordinator: Coordinator, ids: list[str]) -> int:
    """How many of these jobs have not completed, as far as a coordinator knows."""

    def count(store: JobStore) -> int:
        return len(ids) - sum(one.state == "completed" for one in store.many(ids))

    return await coordinator.view.read(count)
