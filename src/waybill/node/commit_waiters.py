"""Calls what waited for a commit. The store only keeps the waiters: calls lead from the node to engines and model."""

from collections.abc import Callable

from mypy_extensions import i64

from waybill.model.store import CommitWaiter
from waybill.storage.commit import Commit


class DurableCall(CommitWaiter):
    """Calls a function when everything so far is durable."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def committed(self, mark: i64) -> None:
        self._call()


def call_waiters(commit: Commit) -> None:
    """Call all waiters of a commit, in the order in which they asked.

    If one raises an exception, the others are still called. Then it is raised; an ExceptionGroup if there are several.
    """
    errors: list[Exception] = []
    for index in range(len(commit.waiters)):
        try:
            commit.waiters[index].committed(commit.marks[index])
        except Exception as error:  # noqa: BLE001 - the other waiters must be called
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several waiters of a commit failed", errors)
