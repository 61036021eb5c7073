"""Directives of operators for one worker, sent through the coordinators' relay."""

from __future__ import annotations

from typing import Final, Protocol

from waybill.ojs.spec.control_message import QUIET, TERMINATE, WAKE

DIRECTIVES: Final = frozenset({QUIET, WAKE, TERMINATE})


class Directed(Protocol):
    """The part of a worker that directives use."""

    def quiet(self) -> None:
        """Take no new jobs."""

    def resume(self) -> None:
        """Take jobs again."""

    def stop(self, reason: str = ...) -> None:
        """Finish what runs, and end."""


def obey(worker: Directed, directive: str) -> None:
    """Have a worker do what is wanted of it."""
    if directive == QUIET:
        worker.quiet()
    elif directive == WAKE:
        worker.resume()
    elif directive == TERMINATE:
        worker.stop("signal")
