"""Directives of operators for one worker, sent through the coordinators' relay."""

from __future__ import annotations

from typing import Final, Protocol

from waybill.ojs.spec.control_message import QUIET, TERMINATE, WAKE

DIRECTIVES: Final = frozenset({QUIET, WAKE, TERMINATE})


class Directed(Protocol):
    """The methods of a worker that directives use."""

    def quiet(self) -> None:
        """Accept no new jobs."""

    def resume(self) -> None:
        """Accept jobs again."""

    def stop(self, reason: str = ...) -> None:
        """Finish running jobs, then stop."""


def obey(worker: Directed, directive: str) -> None:
    """Make a worker follow a directive."""
    if directive == QUIET:
        worker.quiet()
    elif directive == WAKE:
        worker.resume()
    elif directive == TERMINATE:
        worker.stop("signal")
