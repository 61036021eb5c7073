"""The life of a job as a table (ojs-core section 6.3). What the table does not list is refused."""

from __future__ import annotations

from enum import Enum
from typing import Final

from waybill.ojs.errors import InvalidTransition


class State(Enum):
    """The eight states of a job."""

    SCHEDULED = "scheduled"
    AVAILABLE = "available"
    PENDING = "pending"
    ACTIVE = "active"
    RETRYABLE = "retryable"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"


class Operation(Enum):
    """What moves a job from one state to another."""

    PUSH_SCHEDULED = "push scheduled"
    PUSH = "push"
    PUSH_PENDING = "push pending"
    TIMER = "timer"
    ACTIVATE = "activate"
    FETCH = "fetch"
    ACK = "ack"
    FAIL_RETRYABLE = "fail retryable"
    FAIL = "fail"
    CANCEL = "cancel"
    TIMEOUT = "visibility timeout"
    EXPIRE = "expire"
    MANUAL_RETRY = "manual retry"


TRANSITIONS: Final[dict[tuple[State | None, Operation], State]] = {
    (None, Operation.PUSH_SCHEDULED): State.SCHEDULED,
    (None, Operation.PUSH): State.AVAILABLE,
    (None, Operation.PUSH_PENDING): State.PENDING,
    (State.SCHEDULED, Operation.TIMER): State.AVAILABLE,
    (State.PENDING, Operation.ACTIVATE): State.AVAILABLE,
    (State.AVAILABLE, Operation.FETCH): State.ACTIVE,
    (State.AVAILABLE, Operation.EXPIRE): State.DISCARDED,
    (State.ACTIVE, Operation.ACK): State.COMPLETED,
    (State.ACTIVE, Operation.FAIL_RETRYABLE): State.RETRYABLE,
    (State.ACTIVE, Operation.FAIL): State.DISCARDED,
    (State.ACTIVE, Operation.CANCEL): State.CANCELLED,
    (State.ACTIVE, Operation.TIMEOUT): State.AVAILABLE,
    (State.RETRYABLE, Operation.TIMER): State.AVAILABLE,
    (State.SCHEDULED, Operation.CANCEL): State.CANCELLED,
    (State.AVAILABLE, Operation.CANCEL): State.CANCELLED,
    (State.PENDING, Operation.CANCEL): State.CANCELLED,
    (State.RETRYABLE, Operation.CANCEL): State.CANCELLED,
    (State.DISCARDED, Operation.MANUAL_RETRY): State.AVAILABLE,
}

TERMINAL: Final = frozenset({State.COMPLETED, State.CANCELLED, State.DISCARDED})


def transition(state: State | None, operation: Operation) -> State:
    """Return the state after `operation`; None is the state of a job that does not exist yet.

    Raises InvalidTransition for transitions that are not in the table.
    """
    after = TRANSITIONS.get((state, operation))
    if after is None:
        raise InvalidTransition(None if state is None else state.value, operation.value)
    return after
