"""A streamed group whose pusher dies half way ends all the same: by its count, or when nothing is heard any more."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ojs.workflow.definitions import TIME, batch, chain, flow_of, job, names, reloaded
from tests.ojs.workflow.push_program import HALF
from tests.ojs.workflow.test_fold import Log, created, event
from tests.program_environment import program_environment
from waybill.broker import Broker
from waybill.ojs import Coordinator, InvalidJob, Jobs, NewJob, Worker, WorkflowHandle, group, new_workflow_id
from waybill.ojs.coordinator.memory_job_store import MemoryJobStore
from waybill.ojs.workflow.definition import Definition, check_definition
from waybill.ojs.workflow.flow import Flow
from waybill.ojs.workflow.numbering import member_job_id
from waybill.ojs.workflow.rows import UNSEALED, MomentRow

EARLY, LATE = "2026-01-01T00:00:01.000Z", "2026-01-01T00:00:02.000Z"


def streamed(expected: int | None = None) -> Flow:
    flow = flow_of(Definition("batch", streamed=True, expected=expected, callbacks={"on_failure": job()}))
    flow.heard(EARLY)
    return flow


def test_a_group_of_an_announced_count_ends_with_its_last_job() -> None:
    flow = streamed(expected=3)
    assert flow.counts()[0] == 1 + 3
    for index in range(3):
        assert flow.progress.state != "completed"
        flow.member_ended(index, TIME, None)
    assert flow.progress.state == "completed"


def test_a_group_that_is_given_up_fails_when_the_pushed_jobs_have_ended() -> None:
    flow = streamed(expected=10)
    flow.heard(EARLY, pushed=1)
    flow.member_enqueued(2, "q")
    flow.member_ended(0, TIME, None)
    flow.abandon(LATE, TIME)
    assert flow.is_pushed, "another sign of life was the last"
    flow.abandon(EARLY, TIME)
    flow = reloaded(flow)
    flow.member_ended(1, TIME, None)
    assert names(flow) == []
    flow.member_ended(2, TIME, None)
    assert names(flow) == ["on_failure"]
    (error,) = flow.progress.errors
    assert (error.code, error.message[:22]) == ("PUSHER_LOST", "only 3 jobs were pushe")
    assert flow.progress.queues == ["q"]


def test_a_pusher_that_turns_up_again_goes_on() -> None:
    flow = streamed()
    flow.member_enqueued(0, "q")
    flow.abandon(EARLY, TIME)
    flow.heard(LATE, pushed=1)
    flow.member_ended(0, TIME, None)
    assert flow.is_pushed
    flow.abandon(LATE, TIME)
    assert names(flow) == ["on_failure"]
    flow = streamed()
    flow.member_enqueued(0, "q")
    flow.abandon(EARLY, TIME)
    flow.seal(1, TIME)
    flow.member_ended(0, TIME, None)
    assert flow.progress.state == "completed"


def test_nothing_pushed_at_all_fails_at_once_and_stops_a_chain() -> None:
    flow = flow_of(chain(Definition("group", streamed=True), job()))
    flow.heard(EARLY)
    flow.abandon(EARLY, TIME)
    assert (names(flow), flow.progress.state) == ([], "failed")


def test_the_store_marks_a_group_while_it_is_pushed() -> None:
    log, workflow_id = Log(MemoryJobStore()), new_workflow_id()

    def marked() -> list[str]:
        return [row.id for _, row in log.store.marked(UNSEALED, MomentRow, 10)]

    begun = created(workflow_id, Definition("group", streamed=True), parent_job=member_job_id(workflow_id, 7))
    log.add(begun)
    assert marked() == [workflow_id]
    log.add(event("workflow.pushing", workflow_id, pushed=2) | {"time": EARLY})
    log.add(event("workflow.abandoned", workflow_id, heard_at=TIME))
    assert (log.progress(workflow_id).heard_at, marked()) == (EARLY, [workflow_id])
    log.add(
        event("job.enqueued", member_job_id(workflow_id, 4)), event("workflow.abandoned", workflow_id, heard_at=EARLY)
    )
    assert (log.progress(workflow_id).members.known, marked()) == (5, [])
    log.add(begun | {"time": LATE})
    assert (log.progress(workflow_id).members.known, marked()) == (None, [workflow_id])
    log.add(event("workflow.sealed", workflow_id, total=5))
    assert marked() == []
    assert log.progress(workflow_id).parent_job == member_job_id(workflow_id, 7)


@pytest.mark.parametrize("expected", [0, -1, 10**9])
def test_an_impossible_count_is_refused(expected: int) -> None:
    with pytest.raises(InvalidJob, match="expects"):
        check_definition(Definition("group", streamed=True, expected=expected))
    with pytest.raises(InvalidJob, match="expects"):
        check_definition(batch(job(), callbacks=("on_complete",), expected=1))


def test_the_count_of_a_list_is_in_the_definition() -> None:
    jobs = Jobs("amqp://localhost")
    parts = [NewJob("a.b", [number], {}) for number in range(500)]
    assert group(parts).define(jobs, may_stream=True)[0].expected == 500
    assert group(iter(parts)).define(jobs, may_stream=True)[0].expected is None


async def test_a_group_whose_pusher_is_killed_ends(
    monkeypatch: pytest.MonkeyPatch, repository: Path, queue_name: str
) -> None:
    monkeypatch.setattr("waybill.ojs.workflow.pushers.SILENT_SECONDS", 0.5)
    monkeypatch.setattr("waybill.ojs.workflow.pushers.POLL_SECONDS", 0.05)
    monkeypatch.setattr("waybill.ojs.coordinator.leader_loop.POLL_SECONDS", 0.1)
    monkeypatch.setattr("waybill.ojs.coordinator.leader.BEAT_SECONDS", 0.05)
    workflow_id, called = new_workflow_id(), asyncio.Event()
    async with Broker(port=0) as broker, Jobs(broker.uri()) as jobs:

        @jobs.handler("push.one", queue=queue_name)
        async def one(number: int) -> int:
            return number

        @jobs.handler("push.failed", queue=queue_name)
        async def failed() -> None:
            called.set()

        async with Coordinator(jobs, queues=[queue_name]), Worker(jobs, concurrency=20):
            command = [sys.executable, "-m", "tests.ojs.workflow.push_program", jobs.uri, queue_name, workflow_id]
            process = await asyncio.create_subprocess_exec(
                *command, cwd=repository, env=program_environment(), stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            assert await process.stdout.readline() == b"half\n"
            process.kill()
            await process.wait()
            info = await WorkflowHandle[Any](jobs, workflow_id).wait(timeout=60)
            # Its callback has run, so that the batch is done; what went wrong is told.
            assert called.is_set()
            assert (info.state, info.is_sealed, [error.code for error in info.errors]) == (
                "completed",
                False,
                ["PUSHER_LOST"],
            )
            assert info.metadata.completed_count <= HALF + 1
