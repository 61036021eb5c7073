"""Notification of senders when their queue or exchange is deleted."""


class Watcher:
    """A sender to a queue or exchange, to be notified when it is deleted."""

    def node_gone(self, kind: str, name: str) -> None:
        """The queue or exchange was deleted."""
        raise NotImplementedError


class Watchers:
    """The watchers of the nodes of one virtual host, by kind and name of a node."""

    def __init__(self) -> None:
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
        """Notify and remove the watchers of a node."""
        for watcher in list(self._by_node.pop((kind, name), ())):
            watcher.node_gone(kind, name)
