"""Webhooks: signed events sent to URLs, with retries and dead deliveries (ojs-webhooks).

    the events exchange -> one durable queue of all webhooks -> a record for each delivery -> a POST

A message is acknowledged after a record was written for each of its deliveries. The id of a delivery is derived from
event and subscription, so an event that is read twice is one delivery. Any server sends due deliveries, after it has
leased the record; leases of a killed server expire. So endpoints get each event at least once, with the same id, and no
job waits for an endpoint.

Each subscription has a share of the open deliveries. Events beyond it go to a queue of the subscription until there is
room, so an endpoint that is dead holds back no other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import secrets
import time
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.backend.host_names import HostNames
from waybill.backend.job_form import Form
from waybill.backend.portions import PORTION_SECONDS, Steps
from waybill.backend.recent_events import INTERNAL_PREFIX, form_of, is_of
from waybill.backend.settings import Settings
from waybill.backend.webhook_backlog import Backlogs
from waybill.backend.webhook_sender import USER_AGENT, Answer, send, signature_of
from waybill.backend.webhook_shares import SLOW_SECONDS, DueDeliveries, OpenDeliveries
from waybill.client import Channel, ClientError, Consumer, Delivery
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.recurring_error import RecurringError
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.events import ReceivedEvent, read_events
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.nesting import MAX_CARRIED_NESTING, is_nested_deeper, shown
from waybill.ojs.spec.operator_events import (
    WEBHOOK_OUTCOMES,
    WebhookDead,
    WebhookDelivered,
    WebhookFailed,
    WebhookOutcome,
)
from waybill.ojs.spec.timestamps import format_timestamp

QUEUE: Final = "ojs.webhooks"
OPEN: Final = "webhook-open/"
DONE: Final = "webhook-done/"
DELAYS_SECONDS: Final = (0.0, 30.0, 120.0, 600.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 24 * 3600.0)
LEASE_SECONDS: Final = 60.0
"""How long a server leases a delivery: longer than a request can take."""
POLL_SECONDS: Final = 2.0
OPENED_AT_ONCE: Final = 100
CHECKED: Final = 10
"""How many subscriptions a look asks for backlogs that another server has begun."""
PAGE: Final = 50
LOOK_SHARE: Final = 0.1
"""The share of the time that looks at the open deliveries may take."""
PREFETCH: Final = 20
RETENTION: Final = timedelta(days=7)
DEAD_RETENTION: Final = timedelta(days=30)
ROTATION: Final = timedelta(hours=24)
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - a prefix of secrets, for secret scanners

_log = logging.getLogger("waybill.backend")


class Subscription(msgspec.Struct, omit_defaults=True):
    """A subscription. Until `old_until`, deliveries are also signed with the previous secret."""

    id: str
    url: str
    events: list[str]
    secret: str
    active: bool = True
    queues: list[str] = msgspec.field(default_factory=list)
    job_types: list[str] = msgspec.field(default_factory=list)
    metadata: Form = msgspec.field(default_factory=dict)
    old_secret: str = ""
    old_until: str = ""
    tenant: str = ""
    """The tenant, who gets only events of its own queues."""

    def wants(self, event: ReceivedEvent) -> bool:
        """Whether an event is to be delivered."""
        if not self.active or event.type.startswith(INTERNAL_PREFIX) or event.type in WEBHOOK_OUTCOMES:
            return False
        if self.tenant and not is_of(event, f"{self.tenant}."):
            return False
        if not any(_matches(one, event.type) for one in self.events):
            return False
        data = event.data
        return (not self.queues or data.get("queue") in self.queues) and (
            not self.job_types or data.get("job_type") in self.job_types
        )

    def secrets(self, now: str) -> list[str]:
        """Return the secrets for a delivery."""
        return [self.secret, self.old_secret] if self.old_secret and now < self.old_until else [self.secret]

    def rotated(self) -> Subscription:
        """Return a copy with a new secret."""
        until = format_timestamp(datetime.now(UTC) + ROTATION)
        return msgspec.structs.replace(self, secret=new_secret(), old_secret=self.secret, old_until=until)


class Sent(msgspec.Struct, omit_defaults=True):
    """A delivery: open until it is delivered or dead. Times are RFC 3339."""

    subscription: str
    event: Form
    created_at: str
    state: str = "pending"
    attempts: int = 0
    next_at: str = ""
    status_code: int = 0
    error: str = ""
    ended_at: str = ""


class _Due(msgspec.Struct):
    """What tells whether a delivery is due: the event may be large."""

    subscription: str
    next_at: str = ""


class Webhooks:
    """The webhooks of one server."""

    def __init__(self, settings: Settings, broker: BrokerConnection, *, allows_private: bool = False) -> None:
        """`allows_private` allows private addresses and URLs without TLS."""
        self.subscriptions = settings.table("webhook", Subscription)
        self.allows_private = allows_private
        self._records = settings.records
        self._broker = broker
        self._queue = broker.declarer.topology.prefix + QUEUE
        self._channel: Channel | None = None
        self._consumer: Consumer | None = None
        self._names = HostNames()
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._due = DueDeliveries()
        self._open_ones = OpenDeliveries(lambda: len(self.subscriptions))
        """As of the last look, with the changes here since."""
        self._backlogs = Backlogs(broker, f"{self._queue}.")
        self._behind: set[str] = set()
        """Subscriptions that have a backlog."""
        self._checked = ""
        """The last subscription that was asked for one."""
        self._look_at = 0.0
        self._is_closed = False
        self._steps = Steps()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start delivering, if there is a subscription."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop. Deliveries in progress are sent again later, or by another server."""
        self._is_closed = True
        tasks = [*self._sending.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def ensure_queue(self) -> None:
        """Declare the queue that collects events. Raises ClientError."""
        if self._consumer is not None and not self._consumer.closed:
            return
        channel = self._channel = await self._broker.connection.channel(prefetch_count=PREFETCH)
        await channel.declare_queue(self._queue, durable=True, arguments={"x-single-active-consumer": True})
        await channel.bind_queue(self._queue, self._broker.declarer.topology.events, "#")
        self._consumer = await channel.consume(self._queue)
        asyncio.get_running_loop().create_task(self._gather(self._consumer)).add_done_callback(_report)

    async def remove(self, subscription: str) -> None:
        """Remove a subscription, with the events that wait for it."""
        await self.subscriptions.remove(subscription)
        with contextlib.suppress(ClientError):
            await self._backlogs.remove(subscription)

    # --- from events to deliveries ---

    async def _gather(self, consumer: Consumer) -> None:
        async for delivery in consumer:
            try:
                await self._take(delivery)
            except Exception:  # noqa: BLE001 - later events must be delivered
                _log.exception("webhooks skip a message of events that cannot be processed")
                delivery.ack()

    async def _take(self, delivery: Delivery) -> None:
        """Write a record for each delivery of a message's events, then acknowledge the message."""
        wanted: list[tuple[ReceivedEvent, Subscription]] = []
        ends_at = time.perf_counter() + PORTION_SECONDS
        for event in read_events(delivery.body)[0]:
            wanted += [(event, one) for one in self.subscriptions.known.values() if one.wants(event)]
            if time.perf_counter() > ends_at:
                await self._steps.begin()
                ends_at = time.perf_counter() + PORTION_SECONDS
        try:
            for start in range(0, len(wanted), OPENED_AT_ONCE):
                await asyncio.gather(*(self._put(*one) for one in wanted[start : start + OPENED_AT_ONCE]))
        except (ClientError, TimeoutError) as error:
            _log.warning("webhooks are delayed, trying again: %r", error)
            # An unsettled message would block a place of the prefetch forever.
            await asyncio.sleep(POLL_SECONDS)
            delivery.nack(requeue=True)
            return
        delivery.ack()

    async def _put(self, event: ReceivedEvent, subscription: Subscription) -> None:
        """Open a delivery, or put the event into the backlog of its subscription."""
        if is_nested_deeper(msgspec.json.encode(event.data), MAX_CARRIED_NESTING):
            _log.error("webhooks skip event %s: it is nested too deeply", shown(event.id))
            return
        form = form_of(event)
        size = len(msgspec.json.encode(form))
        if subscription.id in self._behind or not self._open_ones.has_room(subscription.id, size):
            self._behind.add(subscription.id)
            await self._backlogs.put(subscription.id, form)
        else:
            await self._open(form, size, subscription.id)

    async def _open(self, event: Form, size: int, subscription: str) -> None:
        delivery_id = delivery_id_of(str(event["id"]), subscription)
        self._open_ones.add(subscription, size)
        if await self._records.get(DONE + delivery_id) is not None:
            self._open_ones.end(subscription, size)
            return
        now = format_timestamp(datetime.now(UTC))
        await self._records.put(OPEN + delivery_id, Sent(subscription, event, now, next_at=now), expected=0)
        self._send(OPEN + delivery_id, subscription)

    async def _look_for_backlogs(self) -> None:
        """Note which subscriptions have a backlog: another server may have begun it."""
        names = sorted(self.subscriptions.known)
        later = [name for name in names if name > self._checked] or names
        for name in later[:CHECKED]:
            if await self._backlogs.count(name):
                self._behind.add(name)
            self._checked = name

    async def _catch_up(self) -> None:
        """Open deliveries of backlogs as far as there is room."""
        for subscription in list(self._behind):
            if subscription not in self.subscriptions.known:
                self._behind.discard(subscription)
                await self._backlogs.remove(subscription)
                continue
            room = self._open_ones.room(subscription)
            taken = await self._backlogs.take(subscription, room) if room else []
            await asyncio.gather(*(self._open_taken(one, subscription) for one in taken))
            if taken:
                self._wake.set()
            elif room:
                self._behind.discard(subscription)

    async def _open_taken(self, taken: Delivery, subscription: str) -> None:
        try:
            event = msgspec.json.decode(taken.body, type=Form)
            await self._open(event, len(taken.body), subscription)
        except (ClientError, TimeoutError):
            taken.nack(requeue=True)
            raise
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            _log.error("webhooks skip an event of a backlog: %s", shown(str(error)))
        taken.ack()

    # --- from deliveries to endpoints ---

    async def _run(self) -> None:
        trouble = RecurringError(_log, "webhooks are delayed, trying again")
        while True:
            try:
                if len(self.subscriptions):
                    await self.ensure_queue()
                if asyncio.get_running_loop().time() >= self._look_at:
                    await self._look()
                    await self._look_for_backlogs()
                await self._catch_up()
                self._send_due()
                trouble.worked()
            except (ClientError, TimeoutError) as error:
                _log.warning("webhooks are delayed, trying again: %s", error)
            except Exception as error:  # noqa: BLE001 - a record or a database may raise anything
                trouble.failed(error)
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()

    async def _look(self) -> None:
        """Find the due deliveries, and count the open ones. There may be many, so a look is done in portions."""
        loop = asyncio.get_running_loop()
        began, now = loop.time(), format_timestamp(datetime.now(UTC))
        found_open = OpenDeliveries(lambda: len(self.subscriptions))
        after = ""
        while records := await self._records.list(OPEN, PAGE, after):
            after = records[-1].key
            for record in records:
                try:
                    found = record.read(_Due)
                except msgspec.ValidationError as error:
                    _log.warning("this version cannot read %s and ignores it: %s", shown(record.key), error)
                    continue
                found_open.add(found.subscription, len(record.raw))
                if found.next_at <= now and record.key not in self._sending:
                    self._due.add(record.key, found.subscription)
            if len(records) < PAGE:
                break
        self._open_ones = found_open
        self._due.failing &= self.subscriptions.known.keys()
        self._look_at = loop.time() + max((loop.time() - began) * (1 / LOOK_SHARE - 1), POLL_SECONDS)

    def _send(self, key: str, subscription: str) -> None:
        """Send a delivery that is due as soon as it is its turn."""
        if key not in self._sending:
            self._due.add(key, subscription)
        self._send_due()

    def _send_due(self) -> None:
        """Begin to send as many due deliveries as possible."""
        while not self._is_closed and (taken := self._due.take()) is not None:
            key, subscription = taken
            loop = asyncio.get_running_loop()
            task = self._sending[key] = loop.create_task(self._deliver(key))
            slow = loop.call_later(SLOW_SECONDS, self._is_slow, key, subscription)
            task.add_done_callback(functools.partial(self._sent, key, subscription, slow))

    def _is_slow(self, key: str, subscription: str) -> None:
        self._due.is_slow(key, subscription)
        self._send_due()

    def _sent(self, key: str, subscription: str, slow: asyncio.TimerHandle, _task: asyncio.Task[None]) -> None:
        slow.cancel()
        self._sending.pop(key, None)
        self._due.done(key, subscription)
        self._send_due()
        if subscription in self._behind:
            self._wake.set()

    async def _deliver(self, key: str) -> None:
        """Claim a delivery, send it, and store the outcome."""
        delivery_id = key.removeprefix(OPEN)
        now = datetime.now(UTC)
        leased_until = format_timestamp(now + timedelta(seconds=LEASE_SECONDS))
        try:
            record = await self._records.get(key)
            sent = None if record is None else record.read(Sent)
            if record is None or sent is None or sent.next_at > format_timestamp(now):
                return
            leased = msgspec.structs.replace(sent, next_at=leased_until)
            if not await self._records.put(record.key, leased, expected=record.version):
                return
            subscription = self.subscriptions.get(sent.subscription)
            if subscription is None:
                await self._records.remove(record.key)
                return
            answer = await self.send(subscription, delivery_id, sent.event)
            await self._store_outcome(record.key, delivery_id, sent, answer)
        except (ClientError, TimeoutError, msgspec.ValidationError) as error:
            _log.warning("the outcome of webhook %s could not be stored: %s", delivery_id, error)

    async def send(self, subscription: Subscription, delivery_id: str, event: Form) -> Answer:
        """Send an event to a subscription once."""
        body = msgspec.json.encode(event)
        timestamp = str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": USER_AGENT,
            "X-OJS-Event-Type": str(event.get("type", "")),
            "X-OJS-Delivery-ID": delivery_id,
            "X-OJS-Subscription-ID": subscription.id,
            "X-OJS-Timestamp": timestamp,
            "X-OJS-Signature": signature_of(subscription.secrets(format_timestamp(datetime.now(UTC))), timestamp, body),
        }
        if not all(value.isprintable() and value.isascii() for value in headers.values()):
            return Answer(400, error="the type of this event does not fit into a header")
        return await send(subscription.url, headers, body, self._names, allows_private=self.allows_private)

    async def _store_outcome(self, key: str, delivery_id: str, sent: Sent, answer: Answer) -> None:
        now = datetime.now(UTC)
        attempts = sent.attempts + 1
        after = msgspec.structs.replace(
            sent, attempts=attempts, status_code=answer.status, error=answer.error, ended_at=format_timestamp(now)
        )
        is_final = 300 <= answer.status < 500 and answer.status not in {408, 429}
        if 200 <= answer.status < 300:
            after.state = "delivered"
        elif is_final or attempts >= len(DELAYS_SECONDS):
            after.state = "dead"
            _log.warning(
                "webhook %s to subscription %s failed for good: %s", delivery_id, sent.subscription, answer.error
            )
        else:
            delay = max(DELAYS_SECONDS[attempts], answer.retry_after or 0.0)
            after.next_at = format_timestamp(now + timedelta(seconds=delay))
            after.ended_at = ""
            self._due.failing.add(sent.subscription)
            await self._records.put(key, after)
            self._tell_outcome(WebhookFailed, delivery_id, after)
            return
        self._due.failing.discard(sent.subscription)
        self._open_ones.end(sent.subscription, len(msgspec.json.encode(sent.event)))
        kept = DEAD_RETENTION if after.state == "dead" else RETENTION
        await self._records.put(DONE + delivery_id, after, expires_at=format_timestamp(now + kept))
        await self._records.remove(key)
        self._tell_outcome(WebhookDead if after.state == "dead" else WebhookDelivered, delivery_id, after)

    def _tell_outcome(self, kind: type[WebhookOutcome], delivery_id: str, sent: Sent) -> None:
        """Publish what has become of a delivery."""
        data = kind(
            subscription_id=sent.subscription,
            delivery_id=delivery_id,
            event_type=str(sent.event.get("type", "")),
            attempts=sent.attempts,
            status_code=sent.status_code,
            error=sent.error or None,
        )
        self.tell(sent.subscription, data)

    def tell(self, subscription: str, data: EventData) -> None:
        """Publish an event about a subscription."""
        self._broker.events.record(subscription, data)

    async def replay(self, delivery_id: str, sent: Sent) -> None:
        """Send an ended delivery again, with new attempts."""
        again = Sent(sent.subscription, sent.event, sent.created_at, next_at=format_timestamp(datetime.now(UTC)))
        await self._records.put(OPEN + delivery_id, again)
        await self._records.remove(DONE + delivery_id)
        self._send(OPEN + delivery_id, sent.subscription)

    async def find(self, delivery_id: str) -> Sent | None:
        """Return a delivery, None if there is none."""
        for kind in (OPEN, DONE):
            record = await self._records.get(kind + delivery_id)
            if record is not None:
                return record.read(Sent)
        return None

    async def deliveries(self, limit: int) -> list[tuple[str, Sent]]:
        """Return deliveries, open ones first."""
        found: list[tuple[str, Sent]] = []
        for kind in (OPEN, DONE):
            records = await self._records.list(kind, limit - len(found)) if len(found) < limit else []
            found += [(one.key.removeprefix(kind), one.read(Sent)) for one in records]
        return found


def new_secret() -> str:
    """Return a new secret."""
    return SECRET_PREFIX + secrets.token_urlsafe(32)


def new_subscription_id() -> str:
    """Return the id of a new subscription."""
    return f"sub_{new_id()}"


def delivery_id_of(event_id: str, subscription_id: str) -> str:
    """Return the deterministic id of the delivery of an event to a subscription."""
    return f"del_{hashlib.sha256(f'{len(event_id)}:{event_id}{subscription_id}'.encode()).hexdigest()[:32]}"


def _matches(pattern: str, event_type: str) -> bool:
    return pattern in {"*", event_type} or (pattern.endswith(".*") and event_type.startswith(pattern[:-1]))


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.warning("webhooks do not receive events, trying again: %r", task.exception())
