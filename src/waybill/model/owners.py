"""The queues that are exclusive to a connection or a session."""

from waybill.model.queue import Queue


class Owners:
    """The queues of one virtual host that have an owner, by owner."""

    def __init__(self) -> None:
        self._queues: dict[object, dict[str, Queue]] = {}

    def add(self, queue: Queue, owner: object) -> None:
        self._queues.setdefault(owner, {})[queue.name] = queue

    def give(self, queue: Queue, owner: object) -> None:
        """Make a queue exclusive to `owner`, who also decides when it is deleted, until `take_back`."""
        queue.owner = owner
        queue.is_held_by_owner = True
        self.add(queue, owner)

    def take_back(self, queue: Queue) -> None:
        """The queue was deleted, or is no longer exclusive."""
        owned = self._queues.get(queue.owner)
        if owned is not None:
            owned.pop(queue.name, None)
            if not owned:
                del self._queues[queue.owner]

    def release(self, queue: Queue) -> None:
        """Let all connections use the queue again."""
        self.take_back(queue)
        queue.owner = None
        queue.is_held_by_owner = False

    def queues_of(self, owner: object) -> list[Queue]:
        return list(self._queues.get(owner, {}).values())
