"""kill -9 of workers, coordinators and the broker while workflows run: each ends exactly as it should.

`KILLS=50` kills more often than the suite has time for.
"""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ojs.broker_process import BrokerProcess
from tests.ojs.workflow.kill_program import KillJobs
from tests.program_environment import program_environment
from tests.rabbitmq import RabbitMQ
from waybill.client import ClientError, connect
from waybill.ojs import (
    PushFailed,
    Shape,
    Workflow,
    WorkflowHandle,
    WorkflowInfo,
    batch,
    chain,
    chord,
    group,
    new_workflow_id,
)
from waybill.ojs.spec.events import ReceivedEvent, decode_events

KILLS = int(os.environ.get("KILLS", "4"))
QUEUE = "kills"
LOG = None if "KILLS" in os.environ else subprocess.DEVNULL


@pytest.fixture(params=["waybill", "rabbitmq"])
def broker(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> Iterator[BrokerProcess | RabbitMQ]:
    broker = BrokerProcess(repository, tmp_path / "data") if request.param == "waybill" else RabbitMQ()
    broker.start()
    yield broker
    broker.close()


class Program:
    """A process that is killed and started again."""

    def __init__(self, repository: Path, role: str, uri: str) -> None:
        self._command = [sys.executable, "-m", "tests.ojs.workflow.kill_program", role, uri, QUEUE]
        self._environment = program_environment()
        self._repository = repository
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, cwd=self._repository, env=self._environment, stdout=subprocess.DEVNULL, stderr=LOG
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def shapes(jobs: KillJobs, number: int) -> tuple[Shape[Any], str]:
    """A workflow of each kind in turn, and how it must end."""
    step, check, total = jobs.step, jobs.check, jobs.total
    kind = number % 7
    if kind == 0:
        steps = [step.job(one) for one in range(8)]
        return chain(*steps, check.job({str(one): one for one in range(8)})), "completed"
    if kind == 1:
        return chord([step.job(one) for one in range(20)], total.job(190)), "completed"
    if kind == 2:
        return chord((step.job(one) for one in range(250)), total.job(31125)), "completed"
    if kind == 3:
        graph = Workflow()
        first = graph.step("first", step.job(1))
        left = graph.step("left", step.job(2), depends_on=[first])
        right = graph.step("right", group(step.job(3), step.job(4)), depends_on=[first])
        expected = {"left": 2, "right": {"0": 3, "1": 4}}
        graph.step("last", check.job(expected), depends_on=[left, right])
        return graph, "completed"
    if kind == 4:
        return chain(step.job(1), step.job(2, fails=True), step.job(3)), "failed"
    if kind == 5:
        parts = [step.job(one, fails=one == 3) for one in range(6)]
        return batch(parts, on_complete=step.job(7), on_success=step.job(8), on_failure=step.job(9)), "completed"
    return chain(jobs.spawn.job(10), step.job(5)), "completed"


async def test_every_workflow_ends_as_it_should(broker: BrokerProcess | RabbitMQ, repository: Path) -> None:
    uri = broker.uri("/ojs")
    chance = random.Random(7)
    jobs = KillJobs(uri, QUEUE)
    programs = {
        role: Program(repository, role.split()[0], uri) for role in ("worker", "coordinator 1", "coordinator 2")
    }
    expected: dict[str, str] = {}
    stop = asyncio.Event()

    async def push_for_ever() -> None:
        while not stop.is_set():
            workflow_id = new_workflow_id()
            shape, end = shapes(jobs, len(expected))
            expected[workflow_id] = end
            await push_until_safe(shape, jobs, workflow_id, len(expected) - 1)
            await asyncio.sleep(0.05)

    try:
        async with jobs.jobs:
            pushing = asyncio.get_running_loop().create_task(push_for_ever())
            for count in range(KILLS):
                await asyncio.sleep(chance.random())
                await kill(broker, programs, count if count < len(programs) + 1 else chance.randrange(4))
            stop.set()
            await pushing
            found = await asyncio.gather(*(end_of(jobs, one) for one in expected))
            wrong = [info for info in found if info.state != expected[info.id]]
            assert not wrong, wrong
            check_stream(await events(uri))
    finally:
        for program in programs.values():
            program.kill()


async def end_of(jobs: KillJobs, workflow_id: str) -> WorkflowInfo:
    """What is known of a workflow when it has ended, or should have."""
    handle = WorkflowHandle[Any](jobs.jobs, workflow_id)
    with contextlib.suppress(TimeoutError):
        return await handle.wait(timeout=60)
    return await handle.info()


async def push_until_safe(shape: Shape[Any], jobs: KillJobs, workflow_id: str, number: int) -> None:
    """Push under one id until the broker has it: a second push of it changes nothing."""
    while True:
        try:
            await shape.push(jobs.jobs, id=workflow_id)
        except (PushFailed, ClientError):
            await asyncio.sleep(0.2)
            shape, _ = shapes(jobs, number)
        else:
            return


async def kill(broker: BrokerProcess | RabbitMQ, programs: dict[str, Program], which: int) -> None:
    if which == len(programs):
        broker.kill()
        await asyncio.to_thread(broker.start)
        return
    program = list(programs.values())[which]
    program.kill()
    program.start()


async def events(uri: str) -> list[ReceivedEvent]:
    """All events of the stream."""
    found: list[ReceivedEvent] = []
    async with connect(uri) as connection:
        channel = await connection.channel(prefetch_count=500)
        count = (await channel.declare_queue("ojs.events", passive=True)).message_count
        seen = 0
        done = asyncio.Event()

        def take(delivery: Any) -> None:
            nonlocal seen
            found.extend(decode_events(delivery.body))
            seen += 1
            delivery.ack()
            if seen >= count:
                done.set()

        await channel.consume("ojs.events", take, arguments={"x-stream-offset": "first"})
        async with asyncio.timeout(30):
            await done.wait()
    return found


def check_stream(found: list[ReceivedEvent]) -> None:
    """Of each step that coordinators enqueue, one copy ran; and each callback was told of once."""
    admitted: defaultdict[str, list[str]] = defaultdict(list)
    workers: defaultdict[tuple[str, object], set[object]] = defaultdict(set)
    fired: Counter[tuple[str, object]] = Counter()
    for event in {event.id: event for event in found}.values():
        if event.type == "claim.admitted":
            admitted[event.subject].append(str(event.data["copy"]))
        elif event.type == "job.started":
            workers[event.subject, event.data["attempt"]].add(event.data["worker_id"])
        elif event.type == "workflow.callback_fired":
            fired[event.subject, event.data["callback"]] += 1
    assert set(fired.values()) <= {1}
    # An attempt is one worker's, unless the broker that was killed gave it to another as if it were new.
    twice = {key: names for key, names in workers.items() if len(names) > 1 and key[0] in admitted}
    assert len(twice) <= KILLS, twice
