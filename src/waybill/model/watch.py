"""Notification of senders when their queue or exchange is deleted."""

from typing import Final

from waybill.model.runtime import Chore, Runtime

TELL_UNITS: Final = 4


class Watcher:
    """A sender to a queue or exchange, to be notified when it is deleted."""

    def node_gone(self, kind: str, name: str) -> None:
        """The queue or exchange was deleted."""
        raise NotImplementedError


class Watchers:
    """The watchers of the nodes of one virtual host, by kind and name of a node."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._by_node: dict[tuple[str, str], dict[Watcher, None]] = {}

    def add(self, kind: str, name: str, watcher: Watcher) -> None:
        self._by_node.setdefault((kind, name), {})[watcher] = None

    def remove(self, kind: str, name: str, watcher: Watcher) -> None:
        found = self._by_node.get((kind, name))
        if found is not None:
            found.pop(watcher, None)
            if not found:
                del self._by_node[kind, name]

    def gone(self, kind: str, name: str) -> None:
        """Notify and remove the watchers of a node, over several turns if there are many."""
        found = self._by_node.pop((kind, name), None)
        if found:
            self._runtime.begin(_Telling(self._runtime, kind, name, list(found)))


class _Telling(Chore):
    """Notifies the watchers of a node that was deleted."""

    def __init__(self, runtime: Runtime, kind: str, name: str, watchers: list[Watcher]) -> None:
        self._runtime = runtime
        self._kind = kind
        self._name = name
        self._watchers = watchers
        watchers.reverse()

    def work(self) -> bool:
        while self._watchers:
            if self._runtime.work_left <= 0:
                return False
            self._runtime.work_left -= TELL_UNITS
            self._watchers.pop().node_gone(self._kind, self._name)
        return True
