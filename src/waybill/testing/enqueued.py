"""Reads the jobs in a broker's queues without consuming them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from waybill.client import BasicProperties
from waybill.ojs import Envelope, InvalidJob, State, Topology, read_envelope
from waybill.ojs.spec.retry import RETRY_BUCKETS_MS
from waybill.ojs.topology.delay_ladder import LEVELS

if TYPE_CHECKING:
    from waybill.node.node import Node


@dataclass(frozen=True)
class EnqueuedJob:
    """A job in a queue. `state`: available, scheduled, retryable, or discarded for one in a dead letter queue."""

    id: str
    type: str
    queue: str
    args: list[object]
    state: State
    attempt: int
    priority: int
    envelope: Envelope = field(repr=False)
    properties: BasicProperties = field(repr=False)


def jobs_of(node: Node, virtual_host: str, topology: Topology, queue: str) -> list[EnqueuedJob]:
    """All waiting jobs of an OJS queue: available ones first, each group in the order of delivery."""
    names = [(name, State.AVAILABLE) for name in topology.job_queues(queue)]
    names += [(topology.delay_level(level), State.SCHEDULED) for level in range(LEVELS)]
    names += [(topology.release_queue(queue), State.SCHEDULED)]
    names += [(topology.retry_queue(queue, delay_ms), State.RETRYABLE) for delay_ms in RETRY_BUCKETS_MS]
    names += [(topology.dead_letter_queue(queue), State.DISCARDED)]
    return [
        job
        for name, state in names
        for job in _jobs_in(node, virtual_host, name, state)
        # All queues share the delay ladder.
        if job.queue == queue
    ]


def _jobs_in(node: Node, virtual_host: str, name: str, state: State) -> Iterator[EnqueuedJob]:
    host = node.virtual_host(virtual_host)
    queue = None if host is None else host.queues.get(name)
    if queue is None:
        return
    for entry in queue.entries():
        properties, body = _content(entry.message.content)
        try:
            envelope = read_envelope(body)
        except InvalidJob:
            continue
        attempt = (properties.headers or {}).get("x-ojs-attempt")
        is_retry = state is State.SCHEDULED and isinstance(attempt, int) and attempt > 1
        yield EnqueuedJob(
            envelope.id,
            envelope.type,
            envelope.queue,
            envelope.args,
            State.RETRYABLE if is_retry else state,
            attempt if isinstance(attempt, int) else envelope.attempt + 1,
            envelope.priority,
            envelope,
            properties,
        )


def _content(content: bytes) -> tuple[BasicProperties, bytes]:
    """Split the frames of a 0-9-1 message: a header frame (properties from octet 19 on), then body frames.

    Each frame has 7 octets before its payload, the last four of which are its size, and one after it.
    """
    end = 7 + int.from_bytes(content[3:7])
    properties = BasicProperties.decode(content, 19, end)
    body = bytearray()
    at = end + 1
    while at < len(content):
        size = int.from_bytes(content[at + 3 : at + 7])
        body += content[at + 7 : at + 7 + size]
        at += 8 + size
    return properties, bytes(body)
