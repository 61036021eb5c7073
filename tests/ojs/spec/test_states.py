"""The life of a job."""

import itertools

import pytest

from waybill.ojs.errors import InvalidTransition
from waybill.ojs.spec.states import TERMINAL, TRANSITIONS, Operation, State, transition

STATES: list[State | None] = [None, *State]


@pytest.mark.parametrize(("state", "operation"), list(itertools.product(STATES, Operation)))
def test_what_the_table_lists_is_allowed_and_nothing_else(state: State | None, operation: Operation) -> None:
    expected = TRANSITIONS.get((state, operation))
    if expected is None:
        with pytest.raises(InvalidTransition):
            transition(state, operation)
    else:
        assert transition(state, operation) is expected


def test_terminal_states_have_no_way_out_but_the_manual_retry() -> None:
    assert {key for key in TRANSITIONS if key[0] in TERMINAL} == {(State.DISCARDED, Operation.MANUAL_RETRY)}


def test_nothing_becomes_active_but_from_available() -> None:
    assert [key for key, after in TRANSITIONS.items() if after is State.ACTIVE] == [(State.AVAILABLE, Operation.FETCH)]


def test_every_state_that_is_not_terminal_can_be_cancelled() -> None:
    for state in set(State) - TERMINAL:
        assert transition(state, Operation.CANCEL) is State.CANCELLED


def test_an_error_says_what_was_tried() -> None:
    with pytest.raises(InvalidTransition, match="ack is not allowed for a job that is available"):
        transition(State.AVAILABLE, Operation.ACK)
