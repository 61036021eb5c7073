"""Tracks how many jobs there are by queue and state, reading only what changed since the last call.

A store numbers the changes of its counts, and a reader passes the number up to which it knows them. So many readers can
follow one store, and processes that share a database see each other's folds.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from heapq import nsmallest
from typing import Final, NamedTuple, Protocol

from waybill.ojs.spec.states import State

Pair = tuple[str, str]
"""A queue and a state."""
ByState = dict[str, int]
MOST_QUEUES: Final = 30_000
"""With counts of their own: as many as a broker has. An event may name any queue."""
OTHER: Final = "_other"
"""The jobs of all further queues are counted under this name, which no queue can have."""
PAGE: Final = 5000
"""How many counts of a database are read together: others wait meanwhile."""
WHOLE_SECONDS: Final = 300.0
"""How often OTHER is counted again in a database, whose changes name all queues."""
_WAITING = State.AVAILABLE.value


class CountMark(NamedTuple):
    """A point up to which counts are known: the number of changes, within an epoch of the store.

    With `parts`, the changes are numbered within each partition of the event stream, and `number` is the sum.
    """

    epoch: int
    number: int
    parts: tuple[int, ...] = ()


class CountChanges(NamedTuple):
    """The counts that changed since a mark, 0 if no job is left; all counts if `is_whole`."""

    mark: CountMark
    counts: Mapping[Pair, int]
    is_whole: bool = False
    after: Pair | None = None
    """The last of these counts if they are only a page of all: `more_counts` has the next one."""


class CountedQueues:
    """The first MOST_QUEUES queues of a store."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def name(self, queue: str) -> str:
        """Return the name under which the jobs of a queue are counted, always the same one."""
        if queue not in self._names:
            if len(self._names) >= MOST_QUEUES:
                return OTHER
            self._names.add(queue)
        return queue


class Countable(Protocol):
    """A store whose counts can be tracked."""

    def count_changes(self, since: CountMark | None) -> CountChanges:
        """Return the counts that changed since a mark, all for None, or the first page of them."""

    def more_counts(self, page: CountChanges) -> CountChanges:
        """Return the next page of all counts."""


class Sums:
    """Adds up all counts, page by page: those of the first MOST_QUEUES queues, and of all further ones as OTHER."""

    def __init__(self) -> None:
        self.counts = Counter[Pair]()
        self._names = CountedQueues()

    def add(self, page: CountChanges) -> None:
        """Add a page."""
        for (queue, state), count in page.counts.items():
            self.counts[self._names.name(queue), state] += count


def all_counts(read: Callable[[Callable[[Countable], CountChanges]], CountChanges]) -> dict[Pair, int]:
    """Return all counts of a store. `read` runs calls with it: others use it between them."""
    sums = Sums()
    page = read(lambda store: store.count_changes(None))
    sums.add(page)
    while page.after is not None:
        page = read(functools.partial(_next_page, page))
        sums.add(page)
    return dict(sums.counts)


def _next_page(page: CountChanges, store: Countable) -> CountChanges:
    return store.more_counts(page)


class JobCounts:
    """The last counts that were read."""

    def __init__(self, counts: Mapping[Pair, int] | None = None) -> None:
        self.mark: CountMark | None = None
        self.version = 0
        """Grows with each change."""
        self.is_partial = False
        """Whether changes of further queues came that are not in OTHER."""
        self.by_pair: dict[Pair, int] = {}
        self.by_queue: dict[str, ByState] = {}
        self.total: ByState = {state.value: 0 for state in State}
        self._groups: dict[str, dict[str, None]] = {}
        """The queues by the part of their names before the first dot, for those that have one."""
        self._versions: dict[str, int] = {}
        """The version in which each queue last changed, ordered by version."""
        self._versions_of_states: dict[str, int] = {}
        self._fullest: tuple[int, int, list[str]] = (-1, 0, [])
        if counts is not None:
            self.take(CountChanges(CountMark(0, 0), counts, is_whole=True))

    def take(self, changes: CountChanges) -> None:
        """Apply counts of a store. Older counts are ignored."""
        if self.mark is not None and changes.mark < self.mark:
            return
        self.mark = changes.mark
        counts = changes.counts
        if changes.is_whole:
            self.is_partial = False
            counts = {**dict.fromkeys(self.by_pair, 0), **counts}
        if not counts:
            return
        self.version += 1
        for (queue, state), count in counts.items():
            self._put(queue, state, count)

    def _put(self, queue: str, state: str, count: int) -> None:
        if count and queue not in self.by_queue and len(self.by_queue) > MOST_QUEUES:
            self.is_partial = True
            return
        pair = (queue, state)
        self.total[state] = self.total.get(state, 0) + count - self.by_pair.get(pair, 0)
        self._versions.pop(queue, None)
        self._versions[queue] = self._versions_of_states[state] = self.version
        if len(self._versions) > 2 * MOST_QUEUES:
            del self._versions[next(iter(self._versions))]
        group, dot, _ = queue.partition(".")
        if count:
            self.by_pair[pair] = self.by_queue.setdefault(queue, {})[state] = count
            if dot:
                self._groups.setdefault(group, {})[queue] = None
        elif self.by_pair.pop(pair, None) is not None:
            own = self.by_queue[queue]
            del own[state]
            if not own:
                del self.by_queue[queue]
                if dot:
                    self._forget(group, queue)

    def _forget(self, group: str, queue: str) -> None:
        del self._groups[group][queue]
        if not self._groups[group]:
            del self._groups[group]

    def of_group(self, group: str) -> dict[str, ByState]:
        """Return the counts of the queues whose names begin with `group` and a dot, without a look at others."""
        return {queue: self.by_queue[queue] for queue in self._groups.get(group, ())}

    def version_of(self, queue: str) -> int:
        """Return the version in which the jobs of a queue last changed."""
        return self._versions.get(queue, 0)

    def version_of_state(self, state: str) -> int:
        """Return the version in which a job last entered or left a state."""
        return self._versions_of_states.get(state, 0)

    def changed_since(self, version: int) -> Iterator[str]:
        """Yield the queues that have changed after a version."""
        for queue, changed in reversed(self._versions.items()):
            if changed <= version:
                break
            yield queue

    def fullest(self, count: int) -> list[str]:
        """Return the queues with the most waiting jobs, the fullest first."""
        version, most, names = self._fullest
        if version != self.version or most < count:
            by_queue = self.by_queue
            names = nsmallest(count, by_queue, key=lambda name: (-by_queue[name].get(_WAITING, 0), name))
            self._fullest = self.version, count, names
        return names[:count]

    def within(self, prefix: str) -> JobCounts:
        """Return the counts of the queues whose names begin with `prefix`."""
        if not prefix:
            return self
        group, dot, _ = prefix.partition(".")
        near = self.of_group(group) if dot else self.by_queue
        own = ((queue, one) for queue, one in near.items() if queue.startswith(prefix))
        return JobCounts({(queue, state): count for queue, one in own for state, count in one.items()})


class FollowedCounts:
    """The counts of a store that others change, too."""

    def __init__(self, read: Callable[[Callable[[Countable], CountChanges]], Awaitable[CountChanges]]) -> None:
        """`read` runs calls with the store, one at a time."""
        self._read = read
        self._counts = JobCounts()
        self._whole_at = 0.0
        self._line = asyncio.Lock()

    async def now(self) -> JobCounts:
        """Return the current counts. It is always the same object, and the next call changes it."""
        counts = self._counts
        async with self._line:
            now = time.monotonic()
            since = None if counts.is_partial and now - self._whole_at >= WHOLE_SECONDS else counts.mark
            if since is None:
                self._whole_at = now
            changes = await self._read(lambda store: store.count_changes(since))
            counts.take(await self._whole(changes) if changes.is_whole else changes)
        return counts

    async def _whole(self, page: CountChanges) -> CountChanges:
        """Return all counts. What has changed since the first page changes after its mark, too."""
        mark, sums = page.mark, Sums()
        sums.add(page)
        while page.after is not None:
            page = await self._read(functools.partial(_next_page, page))
            sums.add(page)
        return CountChanges(mark, sums.counts, is_whole=True)
