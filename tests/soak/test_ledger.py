"""The checker of the soak notices what it is there for."""

import pytest

from tests.soak.ledger import BranchLedger, BrokenPromiseError, Figures, StreamLedger, TransactionLedger, WorkLedger


def work() -> WorkLedger:
    """Ten messages, of which 0-7 are confirmed, 0-3 settled, and 4 acked without proof."""
    return WorkLedger(next_number=10, confirmed=set(range(8)), settled={0, 1, 2, 3}, acked={0, 1, 2, 3, 4})


def test_what_may_be_found_after_a_kill() -> None:
    for found in ([5, 6, 7], [4, 5, 6, 7, 8, 9]):
        figures = Figures()
        ledger = work()
        ledger.check([(number, True) for number in found], figures)
        assert (figures.lost, figures.came_back, figures.confirmed) == (0, 0, 8)
        assert ledger.floor == 10


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([5, 6], "lost"),
        ([3, 5, 6, 7], "settled"),
        ([5, 5, 6, 7], "twice"),
        ([5, 6, 7, 11], "never published"),
    ],
)
def test_a_broken_promise(found: list[int], text: str) -> None:
    with pytest.raises(BrokenPromiseError, match=text):
        work().check([(number, True) for number in found], Figures())


def test_a_second_delivery_must_be_flagged() -> None:
    ledger = WorkLedger(next_number=1)
    ledger.deliver(0, redelivered=False)
    ledger.deliver(0, redelivered=True)
    with pytest.raises(BrokenPromiseError, match="flagged"):
        ledger.deliver(0, redelivered=False)


@pytest.mark.parametrize(("found", "text"), [([0, 1], "torn"), ([1, 1], "lost"), ([0, 0, 7], "old")])
def test_transactions(found: list[int], text: str) -> None:
    with pytest.raises(BrokenPromiseError, match=text):
        TransactionLedger(sizes={0: 2, 1: 2}, committed={0}).check(found, Figures())
    TransactionLedger(sizes={0: 2, 1: 2}, committed={0}).check([0, 0], Figures())


@pytest.mark.parametrize(("source", "target"), [([1, 2], [2, 3]), ([1], [3]), ([1, 3], [2])])
def test_moves(source: list[int], target: list[int]) -> None:
    with pytest.raises(BrokenPromiseError):
        TransactionLedger(movable={1, 2, 3}, moved={3}).check_moves(source, target, Figures())


@pytest.mark.parametrize(
    ("state", "in_doubt", "target", "text"),
    [
        ("prepared", [], [], "forgotten"),
        ("open", [0], [], "cannot be"),
        ("committed", [], [1], "half"),
        ("committing", [], [], "half"),
        ("preparing", [], [1, 2], "half"),
        ("rolled back", [], [1, 2], "half"),
    ],
)
def test_branches(state: str, in_doubt: list[int], target: list[int], text: str) -> None:
    with pytest.raises(BrokenPromiseError, match=text):
        look(state, in_doubt, target)


def look(state: str, in_doubt: list[int], target: list[int]) -> None:
    """What is found after a kill of a branch that moves two messages."""
    ledger = BranchLedger(states={0: state}, numbers={0: {1, 2}}, movable={1, 2, 3})
    ledger.recovered(in_doubt)
    ledger.check([number for number in (1, 2, 3) if number not in target], target)


@pytest.mark.parametrize(("state", "target"), [("committing", [1, 2]), ("preparing", []), ("rolling back", [])])
def test_a_branch_that_is_not_in_doubt_has_ended_as_was_asked(state: str, target: list[int]) -> None:
    look(state, [], target)


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ([(0, b"0"), (2, b"2")], "gaps"),
        ([(0, b"1"), (1, b"0")], "order"),
        ([(0, b"0"), (1, b"2")], "changed"),
        ([(0, b"0"), (1, b"1")], "lost"),
    ],
)
def test_streams(records: list[tuple[int, bytes]], text: str) -> None:
    with pytest.raises(BrokenPromiseError, match=text):
        StreamLedger(confirmed={2}, seen={1: b"1"} if text == "changed" else {}).check(records, Figures())
