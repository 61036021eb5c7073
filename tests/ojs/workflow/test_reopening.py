"""What a workflow does when the dead letter of one of its jobs is retried, without a broker."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ojs.workflow.definitions import (
    TIME,
    batch,
    chain,
    dag,
    end,
    flow_of,
    group,
    job,
    names,
    reloaded,
    run_to_end,
)
from waybill.ojs.workflow.definition import Definition
from waybill.ojs.workflow.flow import Flow
from waybill.ojs.workflow.numbering import member_job_id
from waybill.ojs.workflow.progress import StepError, StepState


def retry(flow: Flow, path: str, times: int = 1) -> None:
    number = next(node.number for node in flow.plan.nodes if node.path == path)
    flow.job_retried(number, flow.progress.runs.get(number, 0), times, TIME)


def states(flow: Flow) -> list[str]:
    return [flow.state(node).name for node in flow.plan.nodes if node.kind == "job"]


def test_a_chain_goes_on_from_the_job() -> None:
    flow = flow_of(chain(job(), job(), job()))
    end(flow, "0")
    end(flow, "1", fails=True)
    assert flow.progress.state == "failed"
    retry(flow, "1")
    assert (flow.progress.state, flow.progress.ended_at, flow.progress.errors) == ("running", None, [])
    assert states(flow) == ["COMPLETED", "PENDING", "WAITING"]
    end(flow, "1")
    assert names(flow) == ["2"]
    end(flow, "2")
    assert (flow.progress.state, flow.counts()) == ("completed", (3, 3, 0))


def test_events_of_an_earlier_run_are_late() -> None:
    flow = flow_of(chain(job(), job()))
    assert flow.job_retried(2, 0, 0, TIME)
    end(flow, "0", fails=True)
    assert flow.job_retried(2, 0, 1, TIME)
    assert flow.job_retried(2, 0, 1, TIME)
    assert not flow.job_retried(2, 0, 0, TIME)


def test_a_job_may_fail_again_and_an_event_counts_once() -> None:
    flow = flow_of(chain(job(), job()))
    end(flow, "0", fails=True)
    retry(flow, "0")
    end(flow, "0", fails=True)
    assert flow.progress.state == "failed"
    retry(flow, "0")
    assert flow.progress.state == "failed"
    retry(flow, "0", 2)
    assert states(flow) == ["PENDING", "WAITING"]


def test_a_running_group_waits_for_the_job_again() -> None:
    flow = flow_of(chain(group(job(), job()), job()))
    end(flow, "0.0", fails=True)
    retry(flow, "0.0")
    end(flow, "0.1")
    assert (names(flow), flow.progress.state) == ([], "running")
    end(flow, "0.0")
    assert names(flow) == ["1"]


def test_steps_of_a_graph_wait_for_all_that_has_failed() -> None:
    flow = flow_of(dag(a=(), b=(), c=("a", "b"), d=("c",), e=("a",)))
    end(flow, "a", fails=True)
    end(flow, "b", fails=True)
    retry(flow, "a")
    assert states(flow) == ["PENDING", "FAILED", "CANCELLED", "CANCELLED", "WAITING"]
    end(flow, "a")
    end(flow, "e")
    assert flow.progress.state == "failed"
    retry(flow, "b")
    end(flow, "b")
    end(flow, "c")
    end(flow, "d")
    assert flow.progress.state == "completed"


def test_callbacks_of_a_batch_are_fired_once() -> None:
    flow = flow_of(batch(job(), callbacks=("on_failure", "on_success")))
    end(flow, "0", fails=True)
    retry(flow, "0")
    assert states(flow) == ["FAILED", "READY", "CANCELLED"]
    end(flow, "on_failure")
    retry(flow, "0", 2)
    assert flow.progress.state == "completed"


def test_a_batch_that_has_fired_none_goes_on() -> None:
    flow = flow_of(batch(job(), callbacks=("on_success",)))
    end(flow, "0", fails=True)
    assert flow.progress.state == "failed"
    retry(flow, "0")
    end(flow, "0")
    assert names(flow) == ["on_success"]


def test_a_callback_is_retried() -> None:
    flow = flow_of(batch(job(), callbacks=("on_complete",)))
    end(flow, "0")
    end(flow, "on_complete", fails=True)
    retry(flow, "on_complete")
    assert flow.progress.state == "running"
    end(flow, "on_complete")
    assert flow.progress.state == "completed"


def test_what_undoes_a_step_of_a_saga_is_retried_but_no_step() -> None:
    undo = {"compensate:a": job("test.undo")}
    flow = flow_of(Definition("saga", steps=[job(name="a"), job(name="b")], callbacks=undo))
    end(flow, "a")
    end(flow, "b", fails=True)
    retry(flow, "b")
    assert states(flow) == ["COMPLETED", "FAILED", "READY"]
    end(flow, "compensate:a", fails=True)
    assert flow.progress.state == "failed"
    retry(flow, "compensate:a")
    assert flow.progress.state == "compensating"
    end(flow, "compensate:a")
    assert flow.progress.state == "compensated"


@pytest.mark.parametrize("how", ["cancel", "expire"])
def test_a_workflow_that_was_stopped_does_not_go_on(how: str) -> None:
    flow = flow_of(group(job(), job()))
    end(flow, "0", fails=True)
    getattr(flow, how)(TIME)
    state = flow.progress.state
    retry(flow, "0")
    assert flow.progress.state == state


def test_streamed_jobs_are_retried() -> None:
    flow = flow_of(chain(group(streamed=True), job()))
    flow.seal(3, TIME)
    for index in range(3):
        failed = StepError(member_job_id(flow.progress.id, index), "HANDLER_ERROR", "no")
        flow.member_ended(index, TIME, failed if index else b"1")
    assert (flow.progress.state, len(flow.progress.errors)) == ("failed", 2)
    flow.member_retried(0, 1, TIME)
    assert flow.progress.state == "failed"
    flow.member_retried(1, 1, TIME)
    flow = reloaded(flow)
    assert (flow.progress.state, len(flow.progress.errors)) == ("running", 1)
    flow.member_ended(1, TIME, b"1")
    assert flow.progress.state == "failed"
    flow.member_retried(2, 1, TIME)
    flow.member_ended(2, TIME, b"1")
    assert (names(flow), flow.counts()) == (["1"], (4, 3, 0))


def parts(depth: int) -> st.SearchStrategy[Definition]:
    if depth == 0:
        return st.builds(job)
    inner = st.lists(parts(depth - 1), min_size=1, max_size=3)
    return st.one_of(
        st.builds(job),
        inner.map(lambda steps: chain(*steps)),
        inner.map(lambda steps: group(*steps)),
        inner.map(lambda steps: batch(*steps, callbacks=("on_success",))),
    )


@settings(max_examples=150)
@given(st.lists(parts(2), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_any_workflow_is_completed_once_its_failed_jobs_are_done(
    steps: list[Definition], chance: random.Random
) -> None:
    flow = flow_of(chain(*steps))
    failed: dict[str, int] = {}

    def fails(path: str) -> bool:
        if path in failed or chance.random() < 0.6:
            return False
        failed[path] = 0
        return True

    run_to_end(flow, fails, chance)
    while flow.progress.state == "failed":
        open_ones = [node for node in flow.plan.nodes if node.kind == "job" and flow.state(node) == StepState.FAILED]
        for node in chance.sample(open_ones, chance.randint(1, len(open_ones))):
            failed[node.path] += 1
            retry(flow, node.path, failed[node.path])
            assert flow.state(node) == StepState.PENDING
            flow = reloaded(flow)
            end(flow, node.path, fails=chance.random() < 0.2)
        run_to_end(flow, fails, chance)
    assert flow.progress.state == "completed"
    assert {flow.state(node) for node in flow.plan.nodes} == {StepState.COMPLETED}
    assert flow.progress.errors == []
