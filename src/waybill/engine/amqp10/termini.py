"""Termini: the state of links, which they keep while they are detached (1.0, 2.6.1, 3.5.5, 3.5.6).

A link is identified by its user, the peer's container-id, its name and its direction. If the user attaches it again
before its terminus expires, it gets the terminus back, with the unsettled deliveries. A durable terminus survives a
restart. Another user never gets it, whatever names that user chooses.

A user may keep a limited number of termini: those that are detached, and those that will outlive their connection. The
latter count from the attach on, so that a detach or a lost connection never exceeds the limit. Others count when they
are detached, and are dropped if the limit is reached.

Older versions stored termini without a user. Such a terminus belongs to the first user who attaches a link with its
container-id and name and has the permissions for it.
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.lifetime import Lifetime
from waybill.engine.amqp10.message_format import AMQP10
from waybill.model.entry import Entry
from waybill.model.footprint import TERMINUS_BYTES, TEXTS
from waybill.model.message import NO_TTL, Address, Message
from waybill.model.queue import Queue
from waybill.model.runtime import Runtime
from waybill.model.timers import Timer
from waybill.model.virtual_host import VirtualHost
from waybill.wire.amqp10.error import RESOURCE_DELETED, RESOURCE_LIMIT_EXCEEDED, STOLEN, Error
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
KEPT_PER_USER_MAX: Final = 1 << 14
DURABLE_PER_USER_MAX: Final = 1 << 13
NOWHERE: Final = Address("", "")
REFUSED: Final = Address("", "refused")
"""The address of a record of a refused delivery."""
STOLEN_LINK: Final = Error(STOLEN, "the link was attached elsewhere")
REMOVED: Final = Error(RESOURCE_DELETED, "the link was removed by an administrator")
QUEUE_FULL: Final = Rejected(Error(RESOURCE_LIMIT_EXCEEDED, "a queue is full")).encode()

# Events that detach a link, weakest first. A terminus starts to expire with the event of its policy, or a stronger one.
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

    def detach(self, error: Error | None, *, closed: bool = True) -> None:
        """Detach the link from our side."""
        raise NotImplementedError

    def give_up(self, entries: list[Entry], terminus: "Terminus") -> None:
        """The terminus ends: apply the default outcome to its deliveries, in this order, then call `let_go`."""
        raise NotImplementedError


class Terminus(Timer):
    """Of a source: `held` are the unsettled deliveries by tag while the link is detached.

    `parting`: the same once the link has ended for good. `queue_id`: the queue of these deliveries. `queue`: one that
    was created for this terminus alone. `positions`: how far a link that copies has come.

    Of a target: `settling` are the tags of deliveries that have an outcome and that the peer has not settled, with the
    delivery-id on the present link, -1 for none. `outcomes`: those that are not `accepted`, encoded. `records`: those
    that survive a restart, with their sequences and locations in the store. Each is stored as a message of a queue that
    only the terminus knows, atomically with its own message, or with the dead letter if a queue refused it. So after a
    crash there are both, or neither. `partial`: the tag and octets of an incomplete delivery.
    """

    def __init__(
        self, termini: "Termini", virtual_host: VirtualHost, user: str, container_id: str, name: str, *, is_source: bool
    ) -> None:
        self.termini = termini
        self.virtual_host = virtual_host
        self.user = user
        self.container_id = container_id
        self.name = name
        self.is_source = is_source
        self.key = terminus_key(virtual_host.name, user, container_id, name, is_source=is_source)
        self.stored_key = self.key
        self.is_kept = False
        self.is_kept_durable = False
        self.is_moving = False
        self.link: LinkEnd | None = None
        self.last_link: LinkEnd | None = None
        self.address = ""
        self.durable = DURABLE_NONE
        self.expiry_policy = EXPIRE_ON_SESSION_END
        self.timeout_s = 0
        self.held: dict[bytes, Entry] = {}
        self.parting: list[Entry] = []
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
        self._has_link = False

    @property
    def is_lasting(self) -> bool:
        """Whether the terminus outlives its connection."""
        return self.timeout_s > 0 or EVENTS[self.expiry_policy] > CONNECTION_CLOSED

    @property
    def is_listed(self) -> bool:
        """Whether the node has the terminus."""
        return self.termini.has(self)

    def goes_with(self, event: int) -> bool:
        """Whether the terminus expires immediately with the event."""
        return event >= EVENTS[self.expiry_policy] and self.timeout_s == 0

    def configure(self, durable: int, expiry_policy: str, timeout_s: int) -> None:
        """Set what the peer has requested. `Termini.save` stores it."""
        self.durable = durable
        self.expiry_policy = expiry_policy
        self.timeout_s = timeout_s
        self.termini.recount(self)

    def take(self, link: LinkEnd) -> None:
        """The link has the terminus from now on."""
        self.link = link
        self.last_link = link
        self._deadline = 0.0
        self.termini.recount(self)
        if self.lifetime is not None and not self._has_link:
            self._has_link = True
            self.lifetime.link_came()

    def detached(self, event: int) -> bool:
        """The link is detached by an event. True if the terminus has gone with it; else report stronger events too."""
        if self.link is not None:
            self.link = None
        if self.goes_with(event) or not (self.is_kept or self.is_moving or self.termini.has_room(self.user)):
            self.destroy()
            return True
        self.termini.recount(self)
        if event < EVENTS[self.expiry_policy]:
            return False
        runtime = self.termini.runtime
        self._deadline = runtime.now + self.timeout_s
        runtime.timers.schedule(self._deadline, self)
        return False

    def fire(self, now: float) -> None:
        if self.link is None and 0.0 < self._deadline <= now:
            self.destroy()

    def keep_partial(self, tag: bytes, octets: bytes) -> None:
        """Keep the first part of a delivery, or nothing if the node holds too much: the peer then sends it again."""
        runtime = self.termini.runtime
        runtime.held_bytes -= len(self.partial)
        if runtime.held_bytes + len(octets) > runtime.held_limit_bytes // 4:
            tag = octets = b""
        runtime.held_bytes += len(octets)
        self.partial_tag = tag
        self.partial = octets

    def is_stale(self, at: float) -> bool:
        return self.link is not None or at != self._deadline or not self.is_listed

    def destroy(self) -> None:
        """Remove the terminus, and give up what it holds."""
        if self.termini.remove(self):
            self._free()

    def discard(self) -> None:
        """Delete what was created for a terminus that was not added to the node."""
        self._free()

    def remove(self) -> None:
        """An administrator removes the terminus, even from a link."""
        if self.link is not None:
            self.link.detach(REMOVED)
        self.destroy()

    def _free(self) -> None:
        self.keep_partial(b"", b"")
        entries = self.parting + list(self.held.values())
        self.held = {}
        self.parting = []
        if self.last_link is not None and entries:
            self.last_link.give_up(entries, self)
        else:
            self.let_go()

    def let_go(self) -> None:
        """All deliveries are released: delete what was created for the terminus."""
        lifetime = self.lifetime
        if lifetime is not None:
            self.lifetime = None
            if self._has_link or self.is_creator:
                lifetime.link_went(is_creator=self.is_creator, was_counted=self._has_link)
            if lifetime.queue.is_deleted:
                self.termini.lifetimes.pop(lifetime.queue, None)
        queue = self.queue
        self.queue = None
        if queue is not None and not queue.is_deleted:
            self.virtual_host.remove_queue(queue)


class Termini:
    """All termini of a node. `limit`: how many may be kept; of one user `kept_per_user_max`, `durable_per_user_max`."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.lifetimes: dict[Queue, Lifetime] = {}
        self.limit = TERMINI_MAX
        self.kept_per_user_max = KEPT_PER_USER_MAX
        self.durable_per_user_max = DURABLE_PER_USER_MAX
        self._by_key: dict[str, Terminus] = {}
        self._kept_count = 0
        self._kept: dict[str, int] = {}
        self._durable: dict[str, int] = {}

    def all(self) -> list[Terminus]:
        """Every terminus, in the order of creation."""
        return list(self._by_key.values())

    def has(self, terminus: Terminus) -> bool:
        return self._by_key.get(terminus.key) is terminus

    def find(self, virtual_host: str, user: str, container_id: str, name: str, *, is_source: bool) -> Terminus | None:
        """The terminus of a link. One without a user, of an older version, belongs to anybody."""
        found = self._by_key.get(terminus_key(virtual_host, user, container_id, name, is_source=is_source))
        return found or self._by_key.get(terminus_key(virtual_host, "", container_id, name, is_source=is_source))

    def add(self, terminus: Terminus) -> None:
        self._by_key[terminus.key] = terminus
        self.recount(terminus)

    def claim(self, terminus: Terminus, user: str) -> None:
        """Assign a terminus without a user to the user who has attached its link."""
        if terminus.user == user or not self.has(terminus):
            return
        del self._by_key[terminus.key]
        self._count(terminus, is_kept=False, is_durable=False)
        terminus.user = user
        terminus.key = terminus_key(
            terminus.virtual_host.name, user, terminus.container_id, terminus.name, is_source=terminus.is_source
        )
        self.add(terminus)

    def remove(self, terminus: Terminus) -> bool:
        """False if the terminus was removed before."""
        if not self.has(terminus):
            return False
        del self._by_key[terminus.key]
        self._count(terminus, is_kept=False, is_durable=False)
        self._forget(terminus)
        return True

    # --- limits ---

    def has_room(self, user: str) -> bool:
        """Whether this user may keep one more."""
        return self._kept_count < self.limit and self._kept.get(user, 0) < self.kept_per_user_max

    def refusal(self, user: str, found: Terminus | None, *, is_lasting: bool, is_durable: bool) -> str:
        """Why the user may not have such a link, in place of `found` if there is one; empty if the user may."""
        if is_lasting and not (found is not None and found.is_kept and found.user == user):
            if self._kept_count >= self.limit:
                return f"the node has {self.limit} links that are detached or outlive their connection, the maximum"
            if self.runtime.footprint_bytes > self.runtime.footprint_limit_bytes:
                return "all declared and attached resources take the maximum memory on this node"
            if self._kept.get(user, 0) >= self.kept_per_user_max:
                return (
                    f"user '{user}' has {self.kept_per_user_max} links already that are detached or would outlive "
                    "their connection"
                )
        has_place = found is not None and found.is_kept_durable and found.user == user
        if is_durable and not has_place and self._durable.get(user, 0) >= self.durable_per_user_max:
            return f"user '{user}' has {self.durable_per_user_max} durable links already"
        return ""

    def recount(self, terminus: Terminus) -> None:
        """Update the counts for the limits."""
        if self.has(terminus):
            self._count(
                terminus,
                is_kept=terminus.link is None or terminus.is_lasting,
                is_durable=terminus.durable != DURABLE_NONE,
            )

    def _count(self, terminus: Terminus, *, is_kept: bool, is_durable: bool) -> None:
        if is_kept != terminus.is_kept:
            terminus.is_kept = is_kept
            self._kept_count += 1 if is_kept else -1
            size = TERMINUS_BYTES + (len(terminus.container_id) + len(terminus.name)) * TEXTS
            self.runtime.add_footprint(size if is_kept else -size)
            _add(self._kept, terminus.user, 1 if is_kept else -1)
        if is_durable != terminus.is_kept_durable:
            terminus.is_kept_durable = is_durable
            _add(self._durable, terminus.user, 1 if is_durable else -1)

    # --- the store ---

    def _forget(self, terminus: Terminus) -> None:
        """Remove a terminus from the store."""
        store = self.runtime.store
        if terminus.is_saved:
            terminus.is_saved = False
            store.undefine(TERMINUS, terminus.stored_key)
        for _, location in terminus.records.values():
            store.messages.forget(location)
        terminus.records = {}
        if terminus.records_id:
            store.messages.remove_queue(terminus.records_id)
            terminus.records_id = 0

    def save(self, terminus: Terminus) -> None:
        """Store a durable terminus."""
        if not terminus.durable:
            self._forget(terminus)
            return
        terminus.is_saved = True
        if not terminus.records_id:
            terminus.records_id = self.runtime.store.new_id()
        stored_key = terminus.stored_key
        terminus.stored_key = terminus.key
        self.runtime.store.define(
            TERMINUS,
            terminus.key,
            {
                "virtual_host": terminus.virtual_host.name,
                "user": terminus.user,
                "container_id": terminus.container_id,
                "name": terminus.name,
                "is_source": terminus.is_source,
                "address": terminus.address,
                "durable": int(terminus.durable),
                "expiry_policy": terminus.expiry_policy,
                "timeout_s": int(terminus.timeout_s),
                "queue": terminus.queue.name if terminus.queue is not None else "",
                "queue_id": int(terminus.queue_id),
                "records": int(terminus.records_id),
            },
        )
        if stored_key != terminus.key:
            # In this order: recovery removes the older one if a crash leaves both.
            self.runtime.store.undefine(TERMINUS, stored_key)

    def release_all(self) -> None:
        """The node stops: return the deliveries of termini to the queues, marked as redelivered."""
        for terminus in self._by_key.values():
            held = list(terminus.held.values())
            terminus.held = {}
            held.reverse()
            for entry in held:
                entry.queue.release(entry, failed=False)

    def keep_delivery(self, terminus: Terminus, tag: bytes, *, is_accepted: bool) -> None:
        """Store the tag of a delivery that is accepted, or that a full queue has refused.

        Call this in one atomic section with the publish.
        """
        sequence = terminus.next_record
        terminus.next_record = sequence + 1
        address = NOWHERE if is_accepted else REFUSED
        record = Message(AMQP10, tag, address, durable=True, priority=0, ttl_ms=NO_TTL, published_at=self.runtime.now)
        terminus.records[tag] = (sequence, self.runtime.messages.put(terminus.records_id, sequence, record))

    def forget_delivery(self, terminus: Terminus, tag: bytes) -> None:
        record = terminus.records.pop(tag, None)
        if record is not None:
            self.runtime.messages.settle(terminus.records_id, record[0], record[1])

    def recover(self, virtual_hosts: dict[str, VirtualHost]) -> None:
        """Recover durable termini, detached. Their time to expire starts again.

        A lowered limit applies to new termini only.
        """
        store = self.runtime.store
        stored = list(store.definitions(TERMINUS))
        claimed = {_integer(value["records"]) for _, value in stored if "user" in value}
        for key, value in stored:
            virtual_host = virtual_hosts.get(str(value["virtual_host"]))
            if virtual_host is None or ("user" not in value and _integer(value["records"]) in claimed):
                store.undefine(TERMINUS, key)
                continue
            terminus = _recovered(self, virtual_host, key, value)
            self.add(terminus)
            terminus.address = str(value["address"])
            terminus.configure(_integer(value["durable"]), str(value["expiry_policy"]), _integer(value["timeout_s"]))
            terminus.queue = virtual_host.queues.get(str(value["queue"]))
            terminus.is_saved = True
            terminus.queue_id = _integer(value["queue_id"])
            terminus.records_id = _integer(value["records"])
            self._recover_deliveries(terminus)
        for terminus in self.all():
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


def terminus_key(virtual_host: str, user: str, container_id: str, name: str, *, is_source: bool) -> str:
    """The identity of a link: its virtual host, direction, user, container-id and name (2.6.1).

    Peers choose the names, so lengths say where each one ends.
    """
    direction = "source" if is_source else "target"
    return f"{virtual_host}\0{direction}\0{len(user)}\0{len(container_id)}\0{user}{container_id}{name}"


def _recovered(termini: Termini, virtual_host: VirtualHost, key: str, value: dict[str, object]) -> Terminus:
    """The terminus of a definition. In older versions only the key has its names."""
    if "user" in value:
        user, container_id, name = str(value["user"]), str(value["container_id"]), str(value["name"])
        is_source = value["is_source"] is True
    else:
        names = key.split("\0")
        user, container_id = "", names[1] if len(names) > 3 else ""
        name, is_source = "\0".join(names[2:-1]), names[-1] == "source"
    terminus = Terminus(termini, virtual_host, user, container_id, name, is_source=is_source)
    terminus.stored_key = key
    return terminus


def _add(counts: dict[str, int], user: str, change: int) -> None:
    count = counts.get(user, 0) + change
    if count:
        counts[user] = count
    else:
        counts.pop(user, None)


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0
