"""Finds typos in queue names: an undeclared name is not immediately treated as a new queue."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

from waybill.client import ClientError, Connection, Inspector
from waybill.ojs.errors import UnknownQueue
from waybill.ojs.handler import AnyHandler
from waybill.ojs.topology.topology import Declaration, Topology

EVENTS_OF: Final = timedelta(days=1)
POLL_SECONDS: Final = 2.0
LIKENESS: Final = 0.75
"""A ratio of difflib: two transposed letters in a name of eight give 0.87."""

_NUMBER: Final = re.compile(r"\d+")
_SEPARATOR: Final = re.compile(r"[-._:]")
_log = logging.getLogger("waybill.ojs.topology")


class QueueGuard:
    """The queues that a program may declare: those that it knows, and existing ones.

    A program with handlers knows its queues, and any other name is refused. A program without handlers knows none: a
    name is refused if it looks like a queue in the events of the last day, and declared as a new queue otherwise.
    """

    def __init__(self, handlers: Mapping[str, AnyHandler], *, creates: bool | None) -> None:
        """`handlers` may grow. `creates` True admits any name, False only known ones; None: see above."""
        self.creates = creates
        self._handlers = handlers
        self._admitted: set[str] = set()

    def admits(self, queue: str) -> bool:
        """Return whether a queue was checked already, or needs no check."""
        return queue in self._admitted or self.creates is True

    async def check(
        self, queue: str, connection: Connection, topology: Topology, most_seconds: float = POLL_SECONDS
    ) -> None:
        """Admit a queue that the program knows or the broker has. Raises UnknownQueue.

        Similar names are searched in the event stream for `most_seconds`.
        """
        if self.admits(queue) or topology.declaration is Declaration.NEVER:
            return
        own = {handler.queue for handler in self._handlers.values()} | {"default"}
        if queue not in own and await Inspector(connection).queue(topology.job_queue(queue)) is None:
            names = _like(queue, own.union(await _names_in_events(connection, topology, most_seconds)))
            error = UnknownQueue(queue, names)
            if names or self._handlers or self.creates is False:
                raise error
            _log.warning("queue %s did not exist: declared it", queue)
        self._admitted.add(queue)


def _like(queue: str, names: Iterable[str]) -> list[str]:
    """Return the names that may be meant: each of their parts is similar to one of the queue's.

    Names that differ only in numbers are separate queues of one kind.
    """
    parts = _parts(queue)
    return sorted(name for name in names if (others := _parts(name)) != parts and _are_alike(parts, others))


def _parts(name: str) -> list[str]:
    return _SEPARATOR.split(_NUMBER.sub("0", name))


def _are_alike(parts: list[str], others: list[str]) -> bool:
    from difflib import SequenceMatcher  # noqa: PLC0415 - only an unknown name needs it, others start sooner

    if len(parts) != len(others):
        # An omitted separator.
        return "".join(parts) == "".join(others)
    pairs = zip(parts, others, strict=True)
    return all(one == other or SequenceMatcher(None, one, other).ratio() >= LIKENESS for one, other in pairs)


async def _names_in_events(connection: Connection, topology: Topology, most_seconds: float) -> list[str]:
    from waybill.ojs.topology.discovery import known_queues  # noqa: PLC0415 - see above

    try:
        return await known_queues(connection, topology, EVENTS_OF, quiet_seconds=0.1, most_seconds=most_seconds)
    except ClientError:
        # A user with permission to push may have no permission to read.
        return []
