"""What operators want of one worker, whatever process it is in: a coordinator's relay carries it."""

from __future__ import annotations

from typing import Final, Protocol

from waybill.ojs.spec.control_message import QUIET, TERMINATE, WAKE

DIRECTIVES: Final = frozenset({QUIET, WAKE, TERMINATE})


class Directed(Protocol):
    """A worker, as far as it is directed."""

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
