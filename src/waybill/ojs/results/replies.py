"""The worker's side of results: sends the outcome of a job to the program that pushed it.

The outcome is sent after its event was confirmed, and before the delivery is acknowledged. So if the worker dies in
between, another one gets the job and sends the outcome. If the reply queue no longer exists, the broker drops the
message; the job is not affected.

Outcomes of many jobs for one queue are sent in one message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from waybill.client import BasicProperties, Channel, ClientError, Delivery
from waybill.ojs.bounded_dict import BoundedDict
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.policy import DIRECT_REPLY, SERVER_NAMED
from waybill.ojs.results.outcome import (
    CONTENT_TYPE,
    REPLY_QUEUES,
    TYPE,
    correlation_of,
    join_outcomes,
    reply_to_of,
)
from waybill.ojs.spec.nesting import shown

MAX_MESSAGE_BYTES: Final = 256 * 1024
MAX_REMEMBERED_BYTES: Final = 4096
MAX_WAITING: Final = 20_000
TRANSIENT: Final = 1
"""Not persistent: after a restart of the broker, waiting programs ask a coordinator."""

Reply = tuple[Delivery, str, bytes]
"""A delivery, the id of its job, and the JSON of the outcome."""

_log = logging.getLogger("waybill.ojs.worker")


class Replies:
    """Sends the outcomes of one worker's jobs."""

    def __init__(self, broker: BrokerConnection, remembered: int) -> None:
        """Remembers the last `remembered` small outcomes, for redelivered attempts."""
        self._connection = broker.connection
        self._own = broker.declarer.topology.prefix + REPLY_QUEUES
        self._counters = broker.events.counters
        self._properties = BasicProperties(
            content_type=CONTENT_TYPE, content_encoding="utf-8", delivery_mode=TRANSIENT, type=TYPE, app_id="ojs"
        ).encode()
        self._channel: Channel | None = None
        self._opening: asyncio.Task[None] | None = None
        self._waiting: list[Reply] = []
        self._told: BoundedDict[tuple[str, str | None], bytes] = BoundedDict(remembered)

    def tell(self, replies: Sequence[Reply]) -> None:
        """Publish outcomes. Raises nothing, because replies are not part of the job."""
        channel = self._channel
        if channel is None:
            self._waiting += replies[: MAX_WAITING - len(self._waiting)]
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._open())
            return
        by_queue: defaultdict[str, list[bytes]] = defaultdict(list)
        for reply in replies:
            delivery, job_id, text = reply
            try:
                reply_to = reply_to_of(delivery.encoded_properties)
            except ValueError:
                continue
            if len(text) <= MAX_REMEMBERED_BYTES:
                self._told[job_id, reply_to] = text
            if reply_to.startswith(self._own):
                by_queue[reply_to].append(text)
            else:
                self._tell_stranger(channel, reply_to, reply)
        for reply_to, texts in by_queue.items():
            self._publish(channel, reply_to, texts)

    def tell_again(self, delivery: Delivery, job_id: str) -> None:
        """Repeat the outcome of a redelivered attempt, as the first message may be lost."""
        try:
            text = self._told.get((job_id, reply_to_of(delivery.encoded_properties)))
        except ValueError:
            return
        if text is not None:
            self.tell([(delivery, job_id, text)])

    async def ready(self) -> None:
        """Wait until no outcomes are queued here."""
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)

    def _publish(self, channel: Channel, reply_to: str, texts: list[bytes]) -> None:
        """Publish outcomes to one of Waybill's reply queues, in as few messages as the limit allows."""
        start = size = 0
        for end, text in enumerate(texts):
            size += len(text)
            if size > MAX_MESSAGE_BYTES and end > start:
                self._send(channel, reply_to, join_outcomes(texts[start:end]), self._properties)
                start, size = end, len(text)
        self._send(channel, reply_to, join_outcomes(texts[start:]), self._properties)

    def _tell_stranger(self, channel: Channel, reply_to: str, reply: Reply) -> None:
        """Answer another program's remote call, if its reply queue is certainly its own."""
        delivery, job_id, text = reply
        if not reply_to.startswith((DIRECT_REPLY, SERVER_NAMED)):
            self._counters.skipped["reply"] += 1
            _log.warning(
                "the outcome of job %s is not sent to %s, which is not a reply queue", shown(job_id), shown(reply_to)
            )
            return
        properties = BasicProperties(
            content_type=CONTENT_TYPE,
            content_encoding="utf-8",
            delivery_mode=TRANSIENT,
            correlation_id=correlation_of(delivery.encoded_properties, job_id),
            type=TYPE,
            app_id="ojs",
        )
        self._send(channel, reply_to, text, properties.encode())

    def _send(self, channel: Channel, reply_to: str, body: bytes, properties: bytes) -> None:
        future = channel.publish_nowait(body, routing_key=reply_to, properties=properties)
        if future.done() and not future.cancelled() and (error := future.exception()) is not None:
            _log.warning("the outcome of a job could not be sent: %r", error)

    async def _open(self) -> None:
        """Open a separate channel: errors there do not close other channels."""
        try:
            self._channel = await self._connection.channel(confirms=False)
        except ClientError as error:
            _log.warning("the outcomes of jobs could not be sent, trying again: %r", error)
        finally:
            self._opening = None
        if self._channel is not None:
            waiting, self._waiting = self._waiting, []
            self.tell(waiting)
