"""The state machine of workflows, without a broker (ojs-workflows sections 4 to 10)."""

import gc
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
from waybill.ojs.workflow.definition import Definition, check_definition
from waybill.ojs.workflow.flow import Flow
from waybill.ojs.workflow.numbering import read_node_id
from waybill.ojs.workflow.plan import Node, Plan
from waybill.ojs.workflow.progress import StepError, StepState


def test_a_chain_starts_one_step_after_the_other() -> None:
    flow = flow_of(chain(job(), job(), job()))
    for place in ("0", "1", "2"):
        assert names(flow) == [place]
        end(flow, place)
    assert (flow.progress.state, flow.counts()) == ("completed", (3, 3, 0))


def test_a_chain_stops_at_the_first_failure_and_says_where() -> None:
    flow = flow_of(chain(job(), job(), job()))
    end(flow, "0")
    end(flow, "1", fails=True)
    assert (names(flow), flow.progress.state) == ([], "failed")
    assert [flow.state(node).name for node in flow.plan.nodes] == ["FAILED", "COMPLETED", "FAILED", "CANCELLED"]
    assert [(error.step, error.code) for error in flow.progress.errors] == [("1", "HANDLER_ERROR")]


def test_jobs_of_a_group_do_not_affect_each_other() -> None:
    flow = flow_of(group(job(), job(), job()))
    assert names(flow) == ["0", "1", "2"]
    end(flow, "1", fails=True)
    assert (names(flow), flow.progress.state) == (["0", "2"], "running")
    end(flow, "0")
    end(flow, "2")
    assert flow.progress.state == "failed"


@pytest.mark.parametrize(
    ("fails", "fired"), [(False, ["on_complete", "on_success"]), (True, ["on_complete", "on_failure"])]
)
def test_a_batch_fires_the_callbacks_of_the_matrix_once(fails: bool, fired: list[str]) -> None:
    flow = flow_of(batch(job(), job(), callbacks=("on_complete", "on_success", "on_failure")))
    end(flow, "0", fails=fails)
    assert names(flow) == ["1"]
    end(flow, "1")
    end(flow, "1")
    assert names(flow) == fired
    for one in fired:
        assert flow.progress.state == "running"
        end(flow, one)
        end(flow, "0", fails=fails)
    assert flow.progress.state == "completed"
    assert names(flow) == []


def test_a_batch_fails_with_its_callback_and_by_what_no_callback_takes_up() -> None:
    flow = flow_of(batch(job(), callbacks=("on_complete",)))
    end(flow, "0")
    end(flow, "on_complete", fails=True)
    assert flow.progress.state == "failed"
    flow = flow_of(batch(job(), callbacks=("on_success",)))
    end(flow, "0", fails=True)
    assert (names(flow), flow.progress.state) == ([], "failed")


def test_a_graph_starts_what_depends_on_nothing_open() -> None:
    flow = flow_of(dag(a=(), b=("a",), c=("a",), d=("b", "c")))
    assert names(flow) == ["a"]
    end(flow, "a")
    assert names(flow) == ["b", "c"]
    end(flow, "c")
    assert names(flow) == ["b"]
    end(flow, "b")
    assert names(flow) == ["d"]
    end(flow, "d")
    assert flow.progress.state == "completed"


def test_a_failure_in_a_graph_stops_what_depends_on_it_and_nothing_else() -> None:
    flow = flow_of(dag(a=(), b=("a",), c=("b",), x=(), y=("x",)))
    end(flow, "a", fails=True)
    assert (names(flow), flow.progress.state) == (["x"], "running")
    end(flow, "x")
    end(flow, "y")
    assert (flow.progress.state, flow.counts()) == ("failed", (5, 2, 1))


def test_parts_within_parts() -> None:
    flow = flow_of(chain(job(), group(chain(job(), job()), batch(job(), callbacks=("on_complete",))), job()))
    end(flow, "0")
    assert names(flow) == ["1.0.0", "1.1.0"]
    end(flow, "1.1.0", fails=True)
    assert names(flow) == ["1.0.0", "1.1.on_complete"]
    end(flow, "1.1.on_complete")
    end(flow, "1.0.0")
    end(flow, "1.0.1")
    assert names(flow) == ["2"]


def test_cancel_lets_those_go_on_that_have_begun() -> None:
    flow = flow_of(chain(group(job(), job()), job()))
    flow.started(3, 0, TIME, 1)
    assert flow.cancel(TIME)
    assert not flow.cancel(TIME)
    assert (flow.progress.state, names(flow), flow.is_idle) == ("cancelled", [], False)
    end(flow, "0.0")
    assert flow.state(flow.plan[3]) is StepState.COMPLETED
    assert (flow.progress.state, names(flow), flow.is_idle) == ("cancelled", [], True)
    assert flow.progress.cancels


def test_an_event_of_a_cancelled_workflow_looks_at_no_other_job() -> None:
    """The end of each of 5,000 jobs looked at the others, and pushes waited for two seconds."""
    flow = flow_of(group(*(job() for _ in range(20))))
    first = 2
    flow.enqueued(first, 0)
    flow.started(first, 0, TIME, 0)
    flow.cancel(TIME)

    class Unread(list[Node]):
        def __iter__(self) -> object:  # type: ignore[override]
            raise AssertionError("all nodes were read")

    flow.plan.nodes = Unread(flow.plan.nodes)
    assert not flow.is_idle
    flow.ended(first, 0, TIME, 1, None)
    assert flow.is_idle


def test_retry_begins_with_what_has_failed_under_other_ids() -> None:
    flow = flow_of(chain(job(), group(job(), job()), job()))
    end(flow, "0")
    end(flow, "1.0")
    first_id = flow.job_id(5)
    end(flow, "1.1", fails=True)
    assert flow.progress.state == "failed"
    assert not flow.retry(2, TIME)
    assert flow.retry(1, TIME)
    assert not flow.retry(1, TIME)
    assert (names(flow), flow.progress.state) == (["1.1"], "running")
    assert flow.job_id(5) != first_id
    numbers = [found and found[1] for found in map(read_node_id, (first_id, flow.job_id(5)))]
    assert numbers == [5, 5]
    flow.ended(5, 0, TIME, 1, None)
    assert names(flow) == ["1.1"], "an end of the first run"
    end(flow, "1.1")
    end(flow, "2")
    assert (flow.progress.state, flow.counts()) == ("completed", (4, 4, 0))


def test_retry_of_a_batch_fires_its_callbacks_for_the_new_outcome() -> None:
    flow = flow_of(batch(job(), job(), callbacks=("on_success", "on_failure")))
    end(flow, "0")
    end(flow, "1", fails=True)
    end(flow, "on_failure", fails=True)
    assert flow.progress.state == "failed"
    flow.retry(1, TIME)
    assert names(flow) == ["1"]
    end(flow, "1")
    assert names(flow) == ["on_success"]


def test_a_step_is_done_when_what_it_has_spawned_is() -> None:
    flow = flow_of(chain(job(), job()))
    flow.child_opened(2, 0, "child")
    end(flow, "0")
    assert (names(flow), flow.state(flow.plan[2])) == ([], StepState.HELD)
    flow.child_ended(2, "child", TIME, is_done=True)
    assert names(flow) == ["1"]


def test_a_step_fails_with_what_it_has_spawned_and_is_retried_with_it() -> None:
    flow = flow_of(chain(job(), job()))
    flow.child_opened(2, 0, "child")
    flow.child_ended(2, "child", TIME, is_done=False)
    end(flow, "0")
    assert (flow.progress.state, list(flow.children(failed_only=True))) == ("failed", ["child"])
    assert flow.retry(1, TIME)
    assert (names(flow), list(flow.children())) == ([], ["child"])
    flow.child_ended(2, "child", TIME, is_done=True)
    assert names(flow) == ["1"]


def test_a_streamed_group_ends_when_all_that_were_streamed_have() -> None:
    flow = flow_of(chain(Definition("group", streamed=True), job()))
    for index in range(100):
        flow.member_ended(index, TIME, b"%d" % index)
    assert (names(flow), flow.progress.state) == ([], "running")
    flow.seal(100, TIME)
    assert names(flow) == ["1"]
    assert flow.counts() == (101, 100, 0)
    assert flow.results[True, 7] == b"7"


def test_failed_members_are_retried_under_their_ids() -> None:
    flow = flow_of(Definition("batch", streamed=True, callbacks={"on_success": job()}))
    flow.seal(3, TIME)
    for index in range(3):
        flow.member_ended(index, TIME, StepError("j", "X", "no") if index == 1 else None)
    assert (flow.progress.state, names(flow), flow.counts()) == ("failed", [], (4, 2, 1))
    assert flow.retry(1, TIME)
    assert flow.progress.revives
    assert flow.counts() == (4, 2, 0)
    flow.member_ended(1, TIME, None)
    assert names(flow) == ["on_success"]


def definition_of(chance: random.Random, depth: int = 3) -> Definition:
    """Any definition: by a seed, as making them piece by piece would take Hypothesis longer than the test."""
    steps = [
        definition_of(chance, depth - 1) if depth > 1 and chance.random() < 0.4 else job()
        for _ in range(chance.randint(1, 5))
    ]
    kind = chance.choice(["chain", "group", "batch", "dag"])
    if kind == "dag":
        for index, step in enumerate(steps):
            step.name = f"step{index}"
            step.depends_on = [f"step{one}" for one in range(index) if chance.random() < 0.4]
        return Definition("dag", steps=steps)
    if kind == "batch":
        callbacks = [one for one in ("on_complete", "on_success", "on_failure") if chance.random() < 0.6]
        return batch(*steps, callbacks=tuple(callbacks or ["on_complete"]))
    return chain(*steps) if kind == "chain" else group(*steps)


def outcome_of(definition: Definition, path: str, failing: set[str]) -> bool:
    """Whether a part succeeds, by the text of the specification: what it is, not how it comes about."""
    if definition.type == "job":
        return path not in failing

    def below(step: Definition, place: int) -> bool:
        name = step.name or str(place)
        return outcome_of(step, f"{path}.{name}" if path else name, failing)

    done = [below(step, place) for place, step in enumerate(definition.steps)]
    if definition.type != "batch":
        return all(done)
    fired = [kind for kind in definition.callbacks if kind == "on_complete" or (kind == "on_success") == all(done)]
    if not fired:
        return all(done)
    return not any((f"{path}.{kind}" if path else kind) in failing for kind in fired)


@given(st.integers(0, 2**32), st.floats(0, 0.5))
@settings(max_examples=300, deadline=None)
def test_every_workflow_ends_as_its_jobs_say(seed: int, risk: float) -> None:
    """In any order of ends, with events twice, late or missing: the same end, and no job twice."""
    chance = random.Random(seed)
    definition = definition_of(chance)
    check_definition(definition)
    flow = flow_of(definition)
    failing = {node.path for node in flow.plan.nodes if node.kind == "job" and chance.random() < risk}
    order = run_to_end(flow, failing.__contains__, chance)
    assert len(order) == len(set(order)), "a job was ready twice"
    assert flow.is_over
    assert (flow.progress.state == "completed") == outcome_of(definition, "", failing)
    assert all(flow.state(node) >= StepState.COMPLETED for node in flow.plan.nodes)
    _check_order(flow, order)
    if flow.progress.state == "failed":
        done = {node.path for node in flow.plan.nodes if node.kind == "job" and flow.state(node) == StepState.COMPLETED}
        flow.retry(1, TIME)
        again = run_to_end(flow, lambda _: False, chance)
        assert flow.progress.state == "completed"
        assert not {one for one in again if "on_" not in one} & done, "what was done is not done again"


def _check_order(flow: Flow, order: list[str]) -> None:
    place = {path: index for index, path in enumerate(order)}
    for node in flow.plan.nodes:
        first = min((place[one.path] for one in flow.plan.below(node) if one.path in place), default=None)
        for before in node.after:
            last = [place[one.path] for one in flow.plan.below(before) if one.path in place]
            assert first is None or max(last) < first


@given(st.integers(0, 2**32), st.integers(0, 30))
@settings(max_examples=150, deadline=None)
def test_another_coordinator_goes_on_where_the_last_one_was_killed(seed: int, ends_before: int) -> None:
    left = [ends_before]
    chance = random.Random(seed)
    definition = definition_of(chance)
    flow = flow_of(definition)
    while flow.ready and left[0]:
        left[0] -= 1
        number = chance.choice(list(flow.ready))
        flow.ended(number, 0, TIME, 1, b"1" if chance.random() < 0.8 else StepError("j", "X", "no"))
    ready, untold, state = set(flow.ready), set(flow.untold), flow.progress.state
    copy = reloaded(flow)
    assert (set(copy.ready), set(copy.untold), copy.progress.state) == (ready, untold, state)
    while copy.ready:
        copy.ended(chance.choice(list(copy.ready)), 0, TIME, 1, b"1")
    assert copy.is_over


def test_a_plan_is_released() -> None:
    """The collector comes rarely, and a definition may have 4 MiB."""
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(one, Node) for one in gc.get_objects())
        plan = Plan(chain(job(), group(job(), job()), job()))
        assert [one.parent for one in plan.root.steps] == [plan.root] * 3
        del plan
        assert sum(isinstance(one, Node) for one in gc.get_objects()) == before
    finally:
        gc.enable()
