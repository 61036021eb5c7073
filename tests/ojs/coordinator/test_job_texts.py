"""Texts of jobs: whatever is put, read and forgotten, a plain dictionary would have the same."""

from hypothesis import given
from hypothesis import strategies as st

from waybill.ojs.coordinator.job_texts import ALIKE, FEW, JobTexts
from waybill.ojs.coordinator.overflow import Overflow
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.workflow.numbering import member_job_id, new_workflow_id

WORKFLOWS = [new_workflow_id(), new_workflow_id()]
IDS = [
    *(member_job_id(one, index) for one in WORKFLOWS for index in (0, 1, 2, 255, 256, 9_999_999)),
    *(f"{WORKFLOWS[0][:28]}{end}" for end in ("0100000A", "01_00001", "010000a ", "01")),
    new_id(), "", "x",
]  # fmt: skip
STEPS = st.lists(st.tuples(st.sampled_from(IDS), st.sampled_from(["put", "alike", "pop"]), st.integers(0, 3)))


def text_of(job_id: str, number: int) -> bytes:
    return f'{{"id":"{job_id}","at":"{number}"}}'.encode()


@given(STEPS)
def test_it_is_a_dictionary(steps: list[tuple[str, str, int]]) -> None:
    plain: dict[str, bytes] = {}
    texts = JobTexts(Overflow())
    for job_id, what, number in steps:
        if what == "pop":
            plain.pop(job_id, None)
            texts.pop(job_id)
        else:
            plain[job_id] = text_of(job_id, number)
            texts.put(job_id, plain[job_id], alike=what == "alike")
    assert {job_id: texts.held(job_id) for job_id in texts} == plain
    assert set(texts.first(len(plain))) == plain.keys()
    assert [job_id in texts for job_id in IDS] == [job_id in plain for job_id in IDS]


def test_texts_that_are_not_alike_are_kept_with_their_jobs() -> None:
    texts, ids = JobTexts(Overflow()), [member_job_id(WORKFLOWS[0], index) for index in range(1000)]
    for number, job_id in enumerate(ids):
        texts.put(job_id, text_of(job_id, number), alike=True)
    assert [texts.held(job_id) for job_id in ids] == [text_of(job_id, number) for number, job_id in enumerate(ids)]
    own = len(texts._own)
    assert own >= len(ids) - FEW - len(ids) // ALIKE
    for job_id in ids:
        texts.pop(job_id)
    assert list(texts) == []
    assert not texts._groups
