"""Which definitions are refused, and how members and results are kept."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ojs.workflow.definitions import batch, chain, dag, group, job
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.identifiers import is_uuid7
from waybill.ojs.workflow.definition import (
    MAX_DEPTH,
    MAX_NODES,
    Definition,
    check_definition,
    order_of,
    read_definition,
)
from waybill.ojs.workflow.members import MemberCounts, Members, Piece
from waybill.ojs.workflow.numbering import (
    MAX_MEMBERS,
    is_workflow_id,
    member_job_id,
    new_workflow_id,
    node_job_id,
    nodes_prefix,
    read_member_id,
    read_node_id,
    spawned_id,
)


def deep(depth: int) -> Definition:
    return group(deep(depth - 1)) if depth else job()


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        (job(), "not a chain"),
        (chain(), "has no jobs"),
        (group(chain()), r"steps\[0\]: has no jobs"),
        (batch(job(), callbacks=()), "without callbacks"),
        (batch(job(), callbacks=("on_monday",)), "callbacks other than"),
        (group(job(), callbacks={"on_success": job()}), "only a batch"),
        (dag(a=("b",), b=("a",)), "wait for each other: 'a', 'b'"),
        (dag(a=("a",)), "wait for each other"),
        (dag(a=("x",)), "'x', which is not a step"),
        (Definition("dag", steps=[job(), job()]), "without a name"),
        (chain(job(after=("x",))), "only those of a graph"),
        (chain(job(), group(streamed=True)), "let the step before it spawn it"),
        (chain(streamed=True), "not a group or batch"),
        (deep(MAX_DEPTH + 1), f"deeper than {MAX_DEPTH}"),
        (group(*[job()] * MAX_NODES), f"{MAX_NODES} are allowed"),
        (chain(Definition("job")), "without an envelope"),
        (chain(Definition("job", job={"type": "a"})), "queue: is missing"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_its_place(definition: Definition, text: str) -> None:
    with pytest.raises(InvalidJob, match=text):
        check_definition(definition)


@pytest.mark.parametrize("value", [None, 1, [], {}, {"type": "loop"}, {"type": "chain", "steps": 1}])
def test_what_is_no_definition_is_refused(value: object) -> None:
    with pytest.raises(InvalidJob):
        read_definition(value)


def test_the_deepest_and_the_largest_are_taken() -> None:
    check_definition(deep(MAX_DEPTH))
    check_definition(group(*[job()] * (MAX_NODES - 1)))
    check_definition(chain(chain(group(streamed=True), job()), job()))


def test_a_graph_is_ordered() -> None:
    assert order_of(dag(d=("c", "b"), b=("a",), c=("a",), a=())) == ["a", "b", "c", "d"]


def test_ordering_a_graph_looks_at_each_dependency_a_few_times() -> None:
    """A graph of 5,000 steps took half a second, as each step looked at all others."""
    looks = 0

    class Name(str):
        __slots__ = ()

        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return str.__hash__(self)

    names: list[str] = [Name(f"s{number}") for number in range(500)]
    steps = [
        Definition("job", name, job=job().job, depends_on=names[max(number - 2, 0) : number])
        for number, name in enumerate(names)
    ]
    assert order_of(Definition("dag", steps=steps)) == names
    assert looks < 30 * len(names)


def test_ids_lead_to_the_workflow_and_the_step() -> None:
    workflow_id = new_workflow_id()
    assert is_workflow_id(workflow_id)
    for run in range(3):
        prefix = nodes_prefix(workflow_id, run)
        for number in (1, 7, MAX_NODES):
            job_id = node_job_id(prefix, number)
            assert is_uuid7(job_id)
            assert read_node_id(job_id) == (prefix, number)
            assert read_member_id(job_id) is None
    for index in (0, 5, MAX_MEMBERS - 1):
        job_id = member_job_id(workflow_id, index)
        assert is_uuid7(job_id)
        assert read_member_id(job_id) == (workflow_id, index)
    assert len({nodes_prefix(workflow_id, run) for run in range(50)}) == 50
    first, second = spawned_id(workflow_id, 1), spawned_id(workflow_id, 2)
    assert first == spawned_id(workflow_id, 1) != second
    assert is_workflow_id(first)
    for text in ("", "x" * 36, workflow_id, "01a2b3c4-d5e6-7fff-8123-456789abxxxx"):
        assert (read_node_id(text), read_member_id(text)) == (None, None)


@given(st.lists(st.tuples(st.integers(-5, 200_000), st.booleans())), st.integers(0, 200_000))
@settings(max_examples=50, deadline=None)
def test_members_are_counted_once(ends: list[tuple[int, bool]], total: int) -> None:
    members, done, failed = Members(MemberCounts()), set[int](), set[int]()
    for index, is_done in ends:
        members.end(index, is_done=is_done)
        if index >= 0 and is_done:
            done.add(index)
        elif index >= 0 and index not in done:
            failed.add(index)
    failed -= done
    assert (members.counts.done, members.counts.failed) == (len(done), len(failed))
    kept = {number: msgspec.json.encode(piece) for number, piece in members.changed.items()}
    copy = Members(
        members.counts, lambda number: msgspec.json.decode(kept[number], type=Piece) if number in kept else None
    )
    copy.seal(total)
    within = {index for index in failed if index < total}
    assert (copy.counts.done, copy.counts.failed) == (sum(index < total for index in done), len(within))
    assert set(copy.failed()) == within
    copy.forget_failures()
    assert (copy.counts.failed, list(copy.failed())) == (0, [])


def test_a_million_members_take_little() -> None:
    members = Members(MemberCounts())
    for index in range(0, 1_000_000, 100):
        members.end(index, is_done=True)
    assert sum(len(piece.done) + len(piece.failed) for piece in members.changed.values()) < 300_000
