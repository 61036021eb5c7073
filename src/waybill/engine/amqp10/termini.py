"""What is kept of a link while it is detached (1.0, 2.6.1, 3.5.5, 3.5.6), and who has it now.

A link is known by the peer's container-id, its name and its direction: whoever attaches it again finds its terminus,
with the deliveries that were not settled, until the terminus expires. A durable terminus is known after a restart too.
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.lifetime import Lifetime
from waybill.engine.amqp10.message_format import AMQP10
from waybill.model.entry import Entry
from waybill.model.message import NO_TTL, Address, Message
from waybill.model.queue import Queue
from waybill.model.runtime import Runtime
from waybill.model.timers import Timer
from waybill.model.virtual_host import VirtualHost
from waybill.wire.amqp10.error import RESOURCE_LIMIT_EXCEEDED, Error
from waybill.wire.amqp10.messaging import (
    DURABLE_NONE,
    EXPIRE_NEVER,
    EXPIRE_ON_CONNECTION_CLOSE,
    EXPIRE_ON_LINK_DETACH,
    EXPIRE_ON_SESSION_END,
    Rejected,
)

TERMINUS: Final = "amqp10-terminus"
TERMINI_MAX: Final = 1 << 17
NOWHERE: Final = Address("", "")
REFUSED: Final = Address("", "refused")
"""The address of a record whose delivery was not accepted."""
QUEUE_FULL: Final = Rejected(Error(RESOURCE_LIMIT_EXCEEDED, "a queue is full")).encode()

# What detaches a link, weakest first; a terminus starts to expire with the event of its policy or a stronger one.
LINK_DETACHED: Final = 0
SESSION_ENDED: Final = 1
CONNECTION_CLOSED: Final = 2
EVENTS: Final[dict[str, int]] = {
    EXPIRE_ON_LINK_DETACH: LINK_DETACHED,
    EXPIRE_ON_SESSION_END: SESSION_ENDED,
    EXPIRE_ON_CONNECTION_CLOSE: CONNECTION_CLOSED,
    EXPIRE_NEVER: CONNECTION_CLOSED + 1,
}


class LinkEnd:
    """An attached link, as its terminus sees it."""

    def steal(self) -> None:
        """Another attach took the terminus: detach this one."""
        raise NotImplementedError

    def give_up(self, entries: list[Entry]) -> None:
        """The terminus is gone: the default outcome for what it still held."""
        raise NotImplementedError


class Terminus(Timer):
    """`held`: deliveries that the peer has not settled, by tag, while the link is detached (a source's).

    `settling`: tags that have an outcome and that the peer has not settled, with the delivery-id that each has on the
    present link, -1 for none (a target's). `outcomes` has those that are not `accepted`, encoded. `records` are those
    that a restart finds again, with their places in the store: each was put there in one step with its message, or with
    what became of it when a queue refused it, as a message of a queue that only the terminus knows. So after a crash
    there are both, or neither. `partial`: the tag and octets of a delivery whose rest did not come.
    `queue_id`: of the queue that a source's deliveries are of. `queue`: one that was made for this terminus alone.
    `positions`: how far a link that copies has come.
    """

    def __init__(self, termini: "Termini", virtual_host: VirtualHost, key: str) -> None:
        self.termini = termini
        self.virtual_host = virtual_host
        self.key = key
        self.link: LinkEnd | None = None
        self.last_link: LinkEnd | None = None
        self.address = ""
        self.durable = DURABLE_NONE
        self.expiry_policy = EXPIRE_ON_SESSION_END
        self.timeout_s = 0
        self.held: dict[bytes, Entry] = {}
        self.settling: dict[bytes, i64] = {}
        self.outcomes: dict[bytes, bytes] = {}
        self.queue_id: i64 = 0
        self.records: dict[bytes, tuple[i64, i64]] = {}
        self.records_id: i64 = 0
        self.next_record: i64 = 1
        self.partial_tag = b""
        self.partial = b""
        self.queue: Queue | None = None
        self.positions: list[i64] = []
        self.lifetime: Lifetime | None = None
        self.is_creator = False
        self.is_saved = False
        self._deadline: float = 0.0

    def configure(self, durable: int, expiry_policy: str, timeout_s: int) -> None:
        """Put what the peer asked for in force. It is remembered by `Termini.save`."""
        self.durable = durable
        self.expiry_policy = expiry_policy
        self.timeout_s = timeout_s

    def take(self, link: LinkEnd) -> None:
        """The terminus is this link's now."""
        self.link = link
        self.last_link = link
        self._deadline = 0.0
        if self.lifetime is not None:
            self.lifetime.link_came()

    def detached(self, event: int) -> bool:
        """The link is gone by an event. True if the terminus went with it; else tell of stronger events later."""
        if self.link is not None:
            self.link = None
        if event < EVENTS[self.expiry_policy]:
            return False
        if self.timeout_s == 0:
            self.destroy()
            return True
        runtime = self.termini.runtime
        self._deadline = runtime.now + self.timeout_s
        runtime.timers.schedule(self._deadline, self)
        return False

    def fire(self, now: float) -> None:
        if self.link is None and 0.0 < self._deadline <= now:
            self.destroy()

    def destroy(self) -> None:
        """Forget it, with all that it holds."""
        if not self.termini.remove(self):
            return
        entries = list(self.held.values())
        self.held = {}
        if self.last_link is not None and entries:
            entries.reverse()
            self.last_link.give_up(entries)
        lifetime = self.lifetime
        if lifetime is not None:
            self.lifetime = None
            lifetime.link_went(is_creator=self.is_creator)
            if lifetime.queue.is_deleted:
                self.termini.lifetimes.pop(lifetime.queue, None)
        queue = self.queue
        self.queue = None
        if queue is not None and not queue.is_deleted:
            self.virtual_host.remove_queue(queue)


class Termini:
    """All termini of a node."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.lifetimes: dict[Queue, Lifetime] = {}
        self.limit = TERMINI_MAX
        self._by_key: dict[str, Terminus] = {}

    @property
    def is_full(self) -> bool:
        """Whether no more may be made: peers choose how many they leave behind."""
        return len(self._by_key) >= self.limit

    def find(self, key: str) -> Terminus | None:
        return self._by_key.get(key)

    def make(self, virtual_host: VirtualHost, key: str) -> Terminus:
        terminus = Terminus(self, virtual_host, key)
        self._by_key[key] = terminus
        return terminus

    def remove(self, terminus: Terminus) -> bool:
        """False if it was removed before."""
        if self._by_key.get(terminus.key) is not terminus:
            return False
        del self._by_key[terminus.key]
        self._forget(terminus)
        return True

    def _forget(self, terminus: Terminus) -> None:
        """Let a restart find nothing of it."""
        store = self.runtime.store
        if terminus.is_saved:
            terminus.is_saved = False
            store.undefine(TERMINUS, terminus.key)
        for _, location in terminus.records.values():
            store.forget(location)
        terminus.records = {}
        if terminus.records_id:
            store.remove_queue(terminus.records_id)
            terminus.records_id = 0

    def save(self, terminus: Terminus) -> None:
        """Keep a durable terminus over a restart."""
        if not terminus.durable:
            self._forget(terminus)
            return
        terminus.is_saved = True
        if not terminus.records_id:
            terminus.records_id = self.runtime.store.new_id()
        self.runtime.store.define(
            TERMINUS,
            terminus.key,
            {
                "virtual_host": terminus.virtual_host.name,
                "address": terminus.address,
                "durable": int(terminus.durable),
                "expiry_policy": terminus.expiry_policy,
                "timeout_s": int(terminus.timeout_s),
                "queue": terminus.queue.name if terminus.queue is not None else "",
                "queue_id": int(terminus.queue_id),
                "records": int(terminus.records_id),
            },
        )

    def release_all(self) -> None:
        """The node stops: what termini hold goes back to its queues, as delivered before."""
        for terminus in self._by_key.values():
            held = list(terminus.held.values())
            terminus.held = {}
            held.reverse()
            for entry in held:
                entry.queue.release(entry, failed=False)

    def keep_delivery(self, terminus: Terminus, tag: bytes, *, is_accepted: bool) -> None:
        """Keep a tag that is accepted, or that a full queue has refused.

        To be called in one atomic step with what keeps the message, or its dead letter.
        """
        sequence = terminus.next_record
        terminus.next_record = sequence + 1
        address = NOWHERE if is_accepted else REFUSED
        record = Message(AMQP10, tag, address, durable=True, priority=0, ttl_ms=NO_TTL, published_at=self.runtime.now)
        terminus.records[tag] = (sequence, self.runtime.store.put(terminus.records_id, sequence, record))

    def forget_delivery(self, terminus: Terminus, tag: bytes) -> None:
        record = terminus.records.pop(tag, None)
        if record is not None:
            self.runtime.store.settle(terminus.records_id, record[0], record[1])

    def recover(self, virtual_hosts: dict[str, VirtualHost]) -> None:
        """Make durable termini again, detached; their time to expire starts anew."""
        store = self.runtime.store
        for key, value in list(store.definitions(TERMINUS)):
            virtual_host = virtual_hosts.get(str(value["virtual_host"]))
            if virtual_host is None:
                store.undefine(TERMINUS, key)
                continue
            terminus = self.make(virtual_host, key)
            terminus.address = str(value["address"])
            terminus.configure(_integer(value["durable"]), str(value["expiry_policy"]), _integer(value["timeout_s"]))
            terminus.queue = virtual_host.queues.get(str(value["queue"]))
            terminus.is_saved = True
            terminus.queue_id = _integer(value["queue_id"])
            terminus.records_id = _integer(value["records"])
            self._recover_deliveries(terminus)
        for terminus in list(self._by_key.values()):
            terminus.detached(CONNECTION_CLOSED)

    def _recover_deliveries(self, terminus: Terminus) -> None:
        store = self.runtime.store
        terminus.next_record = max(terminus.next_record, store.next_sequence(terminus.records_id))
        for stored in store.recovered(terminus.records_id):
            tag = stored.message.content
            terminus.records[tag] = (stored.sequence, stored.location)
            terminus.settling[tag] = -1
            if stored.message.address.routing_key == REFUSED.routing_key:
                terminus.outcomes[tag] = QUEUE_FULL


def terminus_key(virtual_host: str, container_id: str, name: str, *, is_source: bool) -> str:
    """What identifies a link (2.6.1): the containers of both ends, its name, and its direction."""
    return f"{virtual_host}\0{container_id}\0{name}\0{'source' if is_source else 'target'}"


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0
