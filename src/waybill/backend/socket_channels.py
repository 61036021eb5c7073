"""The channels of a WebSocket: a client subscribes to a job, a queue or all events (ojs-realtime section 3).

The channel `events` has the events themselves, as they are in the stream (ojs-events section 6.2). A client may have
several of them, each with a filter and an id of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.errors import is_valid_queue_name
from waybill.backend.job_form import TERMINAL, Form
from waybill.backend.listeners import Predicate, ShuttingDown
from waybill.backend.missed_events import Gap, missed_events
from waybill.backend.portions import PORTION_SECONDS, Steps
from waybill.backend.recent_events import INTERNAL_PREFIX, form_of, is_of
from waybill.backend.sockets import GOING_AWAY, Socket, SocketClosed
from waybill.backend.state_changes import CHANGED, StateChanges
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import format_unix_time

MOST_CHANNELS: Final = 100
ROOM_BYTES: Final = 48 * 1024 * 1024
"""The memory of the channels of all clients. Each client may have a small one beyond it."""
CHANNEL_BYTES: Final = 6 * 1024
FILTER_FACTOR: Final = 4
"""How much memory an octet of the message takes that opens a channel: its filter may have many short strings."""
SMALL_BYTES: Final = 2 * CHANNEL_BYTES
ENDED_AT_ONCE: Final = 20
MOST_TYPES: Final = 50
MAX_NAME: Final = 300
ALL: Final = "all"
EVENTS: Final = "events"
_CHANNELS: Final = "channel: must be job:ID, queue:NAME, all or events."


class _Refused(Exception):
    """A message of the client that is answered with an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ChannelRoom:
    """The memory for the channels of all clients of a server."""

    def __init__(self) -> None:
        self.taken_bytes = 0
        self._ending: set[asyncio.Task[None]] = set()

    def has(self, size: int) -> bool:
        """Whether there is room for another channel."""
        return self.taken_bytes + size <= ROOM_BYTES

    def take(self, size: int, task: asyncio.Task[None]) -> None:
        """Count a channel until its task ends."""
        self.taken_bytes += size
        task.add_done_callback(lambda _: self._release(size))

    def _release(self, size: int) -> None:
        self.taken_bytes -= size

    def end(self, channels: Iterable[asyncio.Task[None]], steps: Steps) -> None:
        """End the channels of a client, some at a time: many clients may disconnect at once."""
        task = asyncio.get_running_loop().create_task(_cancel([*channels], steps))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _cancel(tasks: list[asyncio.Task[None]], steps: Steps) -> None:
    for start in range(0, len(tasks), ENDED_AT_ONCE):
        await steps.begin()
        for task in tasks[start : start + ENDED_AT_ONCE]:
            task.cancel()


class _Channel(NamedTuple):
    """A subscription: which events it selects, and how it shows them."""

    name: str
    wanted: Predicate
    changes: StateChanges
    types: tuple[str, ...]
    subscription: str = ""
    """The id of a channel for the events themselves."""


class SocketChannels:
    """The channels of one client."""

    def __init__(self, backend: Backend, socket: Socket, prefix: str, room: ChannelRoom) -> None:
        """`prefix` is that of the queues that the client may see, and does not name."""
        self._backend = backend
        self._room = room
        self._socket = socket
        self._prefix = prefix
        self._channels: dict[str, _Channel] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._resumed = ""
        """The last event that the client received over an earlier connection."""

    async def run(self) -> None:
        """Obey the client until it disconnects."""
        try:
            while True:
                text = await self._socket.receive()
                try:
                    await self._obey(text)
                except _Refused as error:
                    await self._send({"type": "error", "code": error.code, "message": str(error)})
        except SocketClosed:
            pass
        finally:
            self._room.end(self._tasks.values(), self._backend.events.steps)

    def _changes(self, states: dict[str, str], types: tuple[str, ...]) -> StateChanges:
        return StateChanges(states, self._backend.events.listeners, types)

    async def _send(self, form: Form) -> None:
        """Send a message. It takes no memory of its own while the client does not read."""
        await self._socket.until_writable()
        await self._socket.send(msgspec.json.encode(form).decode())

    async def _obey(self, text: str) -> None:
        try:
            body: Form = msgspec.json.decode(text, type=dict[str, object])
        except (msgspec.DecodeError, RecursionError):
            raise _Refused("invalid_payload", "A message must be a JSON object.") from None
        action = body.get("action")
        if action == "resume":
            await self._resume(body.get("last_event_id"))
            return
        name, subscription = body.get("channel"), body.get("subscription_id")
        if action not in {"subscribe", "unsubscribe"}:
            raise _Refused("invalid_request", "action: must be subscribe, unsubscribe or resume.")
        if action == "unsubscribe" and isinstance(subscription, str):
            await self._stop(subscription)
            await self._send({"action": "unsubscribed", "subscription_id": subscription[:MAX_NAME]})
            return
        if not isinstance(name, str) or len(name) > MAX_NAME:
            raise _Refused("invalid_request", _CHANNELS)
        await self._stop(name)
        if action == "unsubscribe":
            await self._send({"type": "unsubscribed", "channel": name})
            return
        if len(self._tasks) >= MOST_CHANNELS:
            raise _Refused("conflict", f"A connection may have {MOST_CHANNELS} channels.")
        size = CHANNEL_BYTES + FILTER_FACTOR * len(text)
        if not self._room.has(size) and (self._tasks or size > SMALL_BYTES):
            raise _Refused("overloaded", "The clients of this server have too many channels already.")
        if name == EVENTS:
            channel, current = self._open_events(body.get("filter")), None
        else:
            channel, current = await self._open(name, _types_of(body.get("event_types"), "event_types"))
        key = channel.subscription or name
        self._channels[key] = channel
        ready = asyncio.get_running_loop().create_future()
        task = self._tasks[key] = asyncio.get_running_loop().create_task(self._follow(channel, current, ready))
        self._room.take(size, task)
        await ready

    async def _stop(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        self._channels.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _open(self, name: str, types: tuple[str, ...]) -> tuple[_Channel, Form | None]:
        """Return a channel, and the state of its job if that has ended. Raises _Refused."""
        kind, _, rest = name.partition(":")
        if name == ALL:
            return _Channel(name, lambda event: is_of(event, self._prefix), self._changes({}, types), types), None
        if kind == "job" and rest:
            detail = await self._backend.detail(rest)
            if detail is None or not detail.info.queue.startswith(self._prefix):
                raise _Refused("not_found", "The job does not exist.")
            job = detail.info
            channel = _Channel(
                name, lambda event: event.subject == rest, self._changes({rest: job.state}, types), types
            )
            form: Form = {"job_id": job.id, "queue": self._shown(job.queue), "type": job.type}
            form |= {"from": State.ACTIVE.value, "to": job.state, "timestamp": job.ended_at}
            return channel, form if job.state in TERMINAL else None
        queue = self._prefix + rest
        if kind != "queue" or not rest or not is_valid_queue_name(queue):
            raise _Refused("invalid_request", _CHANNELS)
        if queue not in await self._backend.queues():
            raise _Refused("not_found", "The queue does not exist.")
        return _Channel(name, lambda event: event.data.get("queue") == queue, self._changes({}, types), types), None

    def _open_events(self, given: object) -> _Channel:
        """Return a channel for the events that a filter selects. Raises _Refused."""
        selected = {} if given is None else given
        if not isinstance(selected, dict):
            raise _Refused("invalid_request", "filter: must be an object.")
        types, queues, job_types = (
            _types_of(selected.get(name), f"filter.{name}") for name in ("event_types", "queues", "job_types")
        )
        own_queues = {self._prefix + one for one in queues}

        def is_wanted(event: ReceivedEvent) -> bool:
            return (
                is_of(event, self._prefix)
                and not event.type.startswith(INTERNAL_PREFIX)
                and (not types or event.type in types)
                and (not own_queues or event.data.get("queue") in own_queues)
                and (not job_types or event.data.get("job_type") in job_types)
            )

        return _Channel(EVENTS, is_wanted, self._changes({}, ()), types, f"sub_{new_id()}")

    async def _follow(self, channel: _Channel, current: Form | None, ready: asyncio.Future[None]) -> None:
        """Send the events of a channel."""
        try:
            with self._backend.events.listeners.listening(channel.wanted) as listener:
                told: Form = {"type": "subscribed", "channel": channel.name}
                if channel.subscription:
                    told |= {"action": "subscribed", "subscription_id": channel.subscription}
                await self._send(told | ({"event_types": channel.types} if channel.types else {}))
                if current is not None and (not channel.types or CHANGED in channel.types):
                    await self._tell(channel.name, CHANGED, current, "", str(current["timestamp"]))
                if self._resumed:
                    await self._replay([channel])
                ready.set_result(None)
                while True:
                    event = await listener.next()
                    if listener.dropped_count:
                        await self._tell_dropped(channel.name, listener.dropped_count)
                        listener.dropped_count = 0
                    if event is not None:
                        await self._show(channel, event)
        except ShuttingDown:
            now = format_unix_time(time.time())
            await self._tell(channel.name, "server.shutdown", {"grace_period_ms": 0}, "", now)
            await self._socket.close(GOING_AWAY)
        except SocketClosed:
            pass
        finally:
            if not ready.done():
                ready.cancel()

    async def _show(self, channel: _Channel, event: ReceivedEvent) -> None:
        if channel.subscription:
            whole = form_of(event)
            data = whole["data"]
            if isinstance(data, dict) and isinstance(data.get("queue"), str):
                data["queue"] = self._shown(data["queue"])
            await self._send(whole)
            return
        found = channel.changes.form_of(event)
        if found is None and channel.name == ALL and not event.type.startswith((INTERNAL_PREFIX, "job.")):
            # Events of queues, workers, workflows and cron jobs.
            data = form_of(event)["data"]
            is_wanted = isinstance(data, dict) and (not channel.types or event.type in channel.types)
            found = (event.type, data) if is_wanted and isinstance(data, dict) else None
        if found is not None:
            name, form = found
            if isinstance(form.get("queue"), str):
                form = {**form, "queue": self._shown(str(form["queue"]))}
            await self._tell(channel.name, name, form, event.id, event.time)

    async def _tell(self, channel: str, name: str, data: Form, event_id: str, timestamp: str) -> None:
        form: Form = {"type": "event", "channel": channel, "event": name, "data": data}
        await self._send(form | ({"id": event_id} if event_id else {}) | {"timestamp": timestamp})

    async def _tell_dropped(self, channel: str, count: int) -> None:
        await self._send({"type": "warning", "code": "events_dropped", "count": count, "channel": channel})
        now = format_unix_time(time.time())
        data: Form = {"channel": channel, "dropped_count": count, "timestamp": now}
        await self._tell(channel, "system.events_dropped", data, "", now)

    def _shown(self, queue: str) -> str:
        return queue.removeprefix(self._prefix)

    # --- events since an earlier connection ---

    async def _resume(self, event_id: object) -> None:
        """Replay the events after one, for the present channels and for those that follow (section 5.5.2)."""
        if not isinstance(event_id, str) or not 0 < len(event_id) <= MAX_NAME:
            raise _Refused("invalid_request", "last_event_id: must be a string.")
        if not self._backend.events.mentioning(event_id):
            text = "The server does not have this event any more: read the state of the jobs instead."
            raise _Refused("unknown_event_id", text)
        self._resumed = event_id
        await self._send({"type": "resumed", "last_event_id": event_id})
        await self._replay([*self._channels.values()])

    async def _replay(self, channels: list[_Channel]) -> None:
        ends_at = time.perf_counter() + PORTION_SECONDS
        async for group in self._missed():
            for channel in channels:
                if isinstance(group, Gap):
                    now = format_unix_time(time.time())
                    data: Form = {"channel": channel.name, "gap_start": now, "gap_end": now}
                    await self._tell(channel.name, "system.gap", data, "", now)
                    continue
                for event in group:
                    if time.perf_counter() > ends_at:
                        await self._backend.events.steps.begin()
                        ends_at = time.perf_counter() + PORTION_SECONDS
                    if channel.wanted(event):
                        await self._show(channel, event)

    def _missed(self) -> AsyncIterator[list[ReceivedEvent] | Gap]:
        recent = self._backend.events
        return missed_events(recent, self._resumed, recent.seen_count)


def _types_of(given: object, name: str) -> tuple[str, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > MOST_TYPES or not all(isinstance(one, str) for one in given):
        raise _Refused("invalid_request", f"{name}: must be an array of at most {MOST_TYPES} strings.")
    return tuple(given)
