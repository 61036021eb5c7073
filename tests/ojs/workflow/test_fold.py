"""The fold of workflows in every store: the same rows, whatever the events, and after a kill at any of them."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ojs.workflow.definitions import TIME, batch, chain, group, job
from waybill.ojs.coordinator.claims import PENDING, Claim, ClaimFold
from waybill.ojs.coordinator.event_fold import fold_messages
from waybill.ojs.coordinator.feature_fold import FeatureFolds
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.open_store import open_job_store
from waybill.ojs.spec.events import make_event
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.workflow import values
from waybill.ojs.workflow.announce import announcements
from waybill.ojs.workflow.definition import Definition
from waybill.ojs.workflow.fold import WorkflowFold
from waybill.ojs.workflow.numbering import member_job_id, new_workflow_id, node_job_id, nodes_prefix
from waybill.ojs.workflow.progress import Progress
from waybill.ojs.workflow.rows import progress_key
from waybill.ojs.workflow.values import MAX_PARENTS, Plans, Values, read_flow

T = TypeVar("T", bound=msgspec.Struct)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KINDS = (
    "workflow.pushing", "workflow.abandoned", "workflow.followed", "claim.dropped",
    "workflow.created", "workflow.sealed", "workflow.cancelled", "workflow.retried", "workflow.expired",
    "workflow.stopped", "workflow.revived", "workflow.forgotten", "workflow.step_completed", "workflow.callback_fired",
    "workflow.started", "workflow.failed", "workflow.unheard", "job.completed", "job.discarded", "job.started",
    "job.enqueued", "claim.pushed",
)  # fmt: skip
FIELDS = (
    "pushed", "heard_at",
    "definition", "total", "queues", "run", "number", "result", "last_error", "expires_at", "parent_job", "by",
    "workflow_name",
)  # fmt: skip


def event(kind: str, subject: str, **data: object) -> dict[str, Any]:
    return {
        "id": f"evt_{new_id()}", "type": kind, "source": "ojs://waybill/clients/x", "time": TIME, "subject": subject,
        "specversion": "1.0", "data": {"job_type": "a.b", "queue": "q", **data},
    }  # fmt: skip


def created(workflow_id: str, definition: Definition, **data: object) -> dict[str, Any]:
    return event(
        "workflow.created", workflow_id, workflow_name="test", definition=msgspec.to_builtins(definition), **data
    )


class Log:
    """A stream of events, folded into a store."""

    def __init__(self, store: JobStore, plans: Plans | None = None) -> None:
        self.store = store
        store.features = FeatureFolds(
            [WorkflowFold(Plans() if plans is None else plans, lambda _: True), ClaimFold(lambda _: True)]
        )
        self._offset = store.next_offset

    def add(self, *events: dict[str, Any]) -> None:
        fold_messages(self.store, [(self._offset, msgspec.json.encode(list(events)), "boss")])
        self._offset += 1

    def progress(self, workflow_id: str) -> Progress:
        found = self.store.row(progress_key(workflow_id), Progress)
        assert found is not None
        return found

    def claims(self) -> set[str]:
        """The jobs that are to be pushed."""
        return {key.partition("/")[2] for key, _ in self.store.marked(PENDING, Claim, 1000)}


@pytest.fixture(params=["memory", "sqlite"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    return Log(open_job_store(":memory:" if request.param == "memory" else str(tmp_path / "jobs.db")))


def test_steps_become_claims_and_cancelled_ones_are_none(log: Log) -> None:
    workflow_id = new_workflow_id()
    ids = [node_job_id(nodes_prefix(workflow_id, 0), number) for number in range(6)]
    log.add(created(workflow_id, chain(job(), group(job(), job()))))
    assert log.claims() == {ids[2]}
    log.add(event("claim.pushed", ids[2], copy=new_id(), by="me"), event("job.enqueued", ids[2]))
    log.add(event("job.completed", ids[2], attempt=1, result={"a": 1}))
    assert log.claims() == {ids[4], ids[5]}
    assert {claim.by for _, claim in log.store.marked(PENDING, Claim, 10)} == {"me"}
    log.add(event("workflow.cancelled", workflow_id))
    assert log.claims() == set()
    progress = log.progress(workflow_id)
    assert (progress.state, progress.cancels, sorted(progress.dropped)) == ("cancelled", True, [4, 5])


def test_members_lead_to_their_workflow_by_their_ids(log: Log) -> None:
    workflow_id = new_workflow_id()
    log.add(created(workflow_id, Definition("batch", streamed=True, callbacks={"on_complete": job()})))
    ends = [event("job.completed", member_job_id(workflow_id, index), attempt=1, result=index) for index in range(300)]
    log.add(*ends[:200])
    log.add(*ends[100:])
    assert log.progress(workflow_id).members.done == 300
    log.add(event("workflow.sealed", workflow_id, total=300, queues=["q"]))
    assert log.claims() == {node_job_id(nodes_prefix(workflow_id, 0), 2)}


def test_a_workflow_that_is_forgotten_leaves_nothing(log: Log) -> None:
    workflow_id = new_workflow_id()
    log.add(created(workflow_id, Definition("group", streamed=True), expires_at="2027-01-01T00:00:00Z"))
    log.add(event("job.completed", member_job_id(workflow_id, 0), attempt=1, result=1))
    log.add(event("workflow.forgotten", workflow_id))
    assert log.progress(workflow_id).state == "running"
    log.add(event("workflow.sealed", workflow_id, total=1), event("workflow.forgotten", workflow_id))
    for prefix in ("workflow", "workflow-definition", "workflow-nodes", "workflow-members", "workflow-results"):
        assert log.store.listed(f"{prefix}/", Progress, 10) == []
    assert log.store.marked("workflow-due", Progress, 10) == log.store.marked("workflow-ended", Progress, 10) == []


def test_a_step_waits_for_what_it_has_spawned(log: Log) -> None:
    parent, child = new_workflow_id(), new_workflow_id()
    first, second = (node_job_id(nodes_prefix(parent, 0), number) for number in (2, 3))
    log.add(created(parent, chain(job(), job())))
    log.add(created(child, group(job()), parent_job=first))
    log.add(event("job.completed", first, attempt=1))
    assert second not in log.claims()
    log.add(event("job.completed", node_job_id(nodes_prefix(child, 0), 2), attempt=1))
    assert log.claims() == {second}


def test_what_was_announced_is_not_announced_again(log: Log) -> None:
    workflow_id = new_workflow_id()
    step = node_job_id(nodes_prefix(workflow_id, 0), 2)
    log.add(created(workflow_id, chain(job(), job())), event("job.completed", step, attempt=1))
    flow = read_flow(log.store.row, Plans(), workflow_id)
    assert flow is not None
    told = announcements(flow)
    assert [one.what for one in told] == ["started", "ended 2 0"]
    log.add(*(msgspec.to_builtins(make_event("ojs://x", TIME, workflow_id, one.data)) for one in told))
    progress = log.progress(workflow_id)
    assert not progress.untold
    assert progress.told_started


def test_the_results_of_a_chain_are_read_a_row_at_a_time(log: Log) -> None:
    workflow_id = new_workflow_id()
    log.add(created(workflow_id, chain(*(job() for _ in range(120)))))
    ids = [node_job_id(nodes_prefix(workflow_id, 0), number) for number in range(2, 121)]
    log.add(*(event("job.completed", job_id, attempt=1, result=1) for job_id in ids))
    flow = read_flow(log.store.row, Plans(), workflow_id)
    assert flow is not None
    read: list[str] = []

    def row(key: str, kind: type[T]) -> T | None:
        read.append(key)
        return log.store.row(key, kind)

    assert len(Values(flow, row).parents(flow.plan[121])) == MAX_PARENTS
    assert len(read) == 1


def test_plans_are_remembered_up_to_a_size(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A definition may have 4 MiB, and there were 200 of them."""
    read: list[str] = []

    def row(key: str, kind: type[T]) -> T | None:
        read.append(key)
        return log.store.row(key, kind)

    def definitions_read() -> int:
        plans = Plans()
        read.clear()
        for workflow_id in (*ids, *ids):
            assert read_flow(row, plans, workflow_id) is not None
        return sum("definition" in key for key in read)

    ids = [new_workflow_id() for _ in range(3)]
    for workflow_id in ids:
        log.add(created(workflow_id, chain(job(), job())))
    assert definitions_read() == 3
    monkeypatch.setattr("waybill.ojs.workflow.values.PLANS_BYTES", 1)
    assert definitions_read() == 6


DATA = st.dictionaries(st.sampled_from(FIELDS), JSON)
TIMES = st.sampled_from([TIME, "", "x"])
EVENTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 12), DATA, TIMES), max_size=12)


@given(EVENTS)
@settings(max_examples=15, deadline=None)
def test_events_of_any_shape_leave_workflows_whole(found: list[tuple[str, int, dict[str, Any], str]]) -> None:
    log = Log(open_job_store(":memory:"))
    workflow_id, other = new_workflow_id(), new_workflow_id()
    prefix = nodes_prefix(workflow_id, 0)
    subjects = [
        workflow_id, other, member_job_id(workflow_id, 3), "", "x" * 36, prefix + "zzzz",
        *(node_job_id(prefix, number) for number in range(7)),
    ]  # fmt: skip
    log.add(created(workflow_id, batch(job(), job(), callbacks=("on_complete",))))
    for kind, place, data, time in found:
        one = event(kind, subjects[place], **data)
        one["time"] = time
        log.add(one)
    progress = log.store.row(progress_key(workflow_id), Progress)
    assert progress is None or progress.state in {"pending", "running", "completed", "failed", "cancelled"}
    log.add(created(new_workflow_id(), chain(job())))
    assert log.claims()


def test_plans_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reader kept its own plans by the size of their JSON, which is a tenth of that of their objects."""
    monkeypatch.setattr(values, "PLANS_BYTES", 40 * values.NODE_BYTES)
    plans = Plans()
    with open_job_store(":memory:") as store:
        log = Log(store, plans)
        ids = [new_workflow_id() for _ in range(10)]
        for workflow_id in ids:
            log.add(created(workflow_id, group(*(job() for _ in range(9)))))
        for workflow_id in ids:
            assert read_flow(store.row, plans, workflow_id) is not None
        assert len(plans) == 3
