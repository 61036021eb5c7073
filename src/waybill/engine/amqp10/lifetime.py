"""The lifetime of a dynamic node (1.0, 3.5.10 to 3.5.13): its creator, its links or its messages keep it."""

from typing import Final

from waybill.engine.server_engine import ServerEngine
from waybill.model.queue import Queue
from waybill.model.virtual_host import VirtualHost
from waybill.wire.amqp10.messaging import (
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoMessages,
    LifetimePolicy,
)

DYNAMIC_PREFIX: Final = "amqp10.dynamic."
"""How names of dynamic nodes begin."""


class Lifetime:
    """The lifetime of one queue that was made for a link. `policy` says what keeps it besides that link.

    `owner`: the connection that alone may consume while it is open, None for any.
    """

    def __init__(self, virtual_host: VirtualHost, queue: Queue, policy: LifetimePolicy) -> None:
        self.queue = queue
        self.policy = policy
        self.owner: ServerEngine | None = None
        self._virtual_host = virtual_host
        self._has_creator = True
        self._link_count = 0

    def is_locked_for(self, connection: ServerEngine) -> bool:
        """Whether only another connection, which is still open, may consume from the queue."""
        owner = self.owner
        return owner is not None and owner is not connection and not owner.closed

    def link_came(self) -> None:
        self._link_count += 1

    def link_went(self, *, is_creator: bool, was_counted: bool) -> None:
        """A link has ended. `was_counted`: `link_came` was called for it."""
        if was_counted:
            self._link_count -= 1
        if is_creator:
            self._has_creator = False
        self.check()

    def check(self) -> None:
        """Delete the queue if nothing keeps it alive."""
        if self._has_creator or self.queue.is_deleted:
            return
        policy = self.policy
        has_links = self._link_count > 0
        has_messages = self.queue.ready_count > 0 or self.queue.unsettled_count > 0
        if isinstance(policy, DeleteOnClose):
            is_kept = False
        elif isinstance(policy, DeleteOnNoLinks):
            is_kept = has_links
        elif isinstance(policy, DeleteOnNoMessages):
            is_kept = has_messages
        else:
            is_kept = has_links or has_messages
        if not is_kept:
            self._virtual_host.remove_queue(self.queue)
