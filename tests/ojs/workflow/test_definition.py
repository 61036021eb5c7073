"""Which definitions are refused, and how members and results are kept."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ojs.workflow.definitions import batch, chain, dag, group, job
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.identifiers import is_uuid7, new_id
from waybill.ojs.workflow.definition import (
    MAX_DEPTH,
    MAX_NODES,
    Definition,
    check_definition,
    order_of,
    read_definition,
)
from waybill.ojs.workflow.members import PIECE_BYTES, Members
from waybill.ojs.workflow.numbering import (
    FIRST_MEMBER,
    PREFIX_LENGTH,
    derived_id,
    is_workflow_id,
    job_id_of,
    new_workflow_id,
    number_of,
    run_prefix,
)
from waybill.ojs.workflow.results import Results


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
        (dag(a=("x",)), "'x', which is none"),
        (Definition("dag", steps=[job(), job()]), "without a name"),
        (chain(job(after=("x",))), "only those of a graph"),
        (chain(job(), group(streamed=True)), "let the step before spawn it"),
        (chain(streamed=True), "no group or batch"),
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


def test_ids_lead_to_the_workflow_and_the_step() -> None:
    workflow_id = new_workflow_id()
    assert is_workflow_id(workflow_id)
    for run in range(3):
        prefix = run_prefix(workflow_id, run)
        for number in (1, 7, FIRST_MEMBER + 12345):
            job_id = job_id_of(prefix, number)
            assert is_uuid7(job_id)
            assert (job_id[:PREFIX_LENGTH], number_of(job_id)) == (prefix, number)
    assert len({run_prefix(workflow_id, run) for run in range(50)}) == 50
    assert derived_id(workflow_id, "a") == derived_id(workflow_id, "a") != derived_id(workflow_id, "b")
    assert is_workflow_id(derived_id(new_id(), "a"))
    assert [number_of(text) for text in ("", "x" * 36, workflow_id)] == [0, 0, 0]


@given(st.lists(st.tuples(st.integers(-5, 200_000), st.booleans())), st.integers(0, 200_000))
@settings(max_examples=50, deadline=None)
def test_members_are_counted_once(ends: list[tuple[int, bool]], total: int) -> None:
    members, done, failed = Members(), set[int](), set[int]()
    for index, is_done in ends:
        members.end(index, is_done=is_done)
        if index >= 0 and is_done:
            done.add(index)
        elif index >= 0 and index not in done:
            failed.add(index)
    failed -= done
    assert (members.done_count, members.failed_count) == (len(done), len(failed))
    copy = Members()
    copy.load({piece: members.piece(piece) for piece in members.changed})
    copy.seal(total)
    within = {index for index in failed if index < total}
    assert (copy.done_count, set(copy.failed())) == (sum(index < total for index in done), within)
    copy.forget_failures()
    assert copy.failed_count == 0


def test_a_million_members_take_little() -> None:
    members = Members()
    members.end(999_999, is_done=True)
    pieces = -(-1_000_000 // 8 // PIECE_BYTES)
    assert len(members.piece(pieces - 1)) == 2 * PIECE_BYTES
    assert sum(len(members.piece(piece)) for piece in range(pieces + 1)) <= 2 * (pieces + 1) * PIECE_BYTES


def test_results_are_kept_until_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.ojs.workflow.results.MAX_RESULTS_BYTES", 20)
    results = Results()
    assert results.add(2, b'"ab"')
    assert results.add(FIRST_MEMBER + 5, b"1")
    assert not results.add(3, b"x" * 20)
    part = results.take_new()
    assert part is not None
    assert results.take_new() is None
    copy = Results()
    copy.load(part)
    assert [copy.get(one) for one in (1, 2, 3, FIRST_MEMBER + 5, FIRST_MEMBER)] == [None, b'"ab"', None, b"1", None]
