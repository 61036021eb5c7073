"""A channel that publishes to a stream publishes to no other queue: see `waybill.ojs.observe.event_writer`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from waybill.client import Channel, MessageReturned
from waybill.ojs import Topology
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.spec.control_message import QUIET, ControlRequest
from waybill.ojs.spec.event_partitions import HEADER, partition_of_job
from waybill.ojs.spec.events import JobCompleted

PARTITIONS = 3
Place = tuple[str, object]
"""An exchange, and the partition in a message's headers."""


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> defaultdict[Channel, list[Place]]:
    """Where each channel has published."""
    found: defaultdict[Channel, list[Place]] = defaultdict(list)

    def note(method: Callable[..., object]) -> Callable[..., object]:
        def noting(channel: Channel, *arguments: object, **options: Any) -> object:
            headers = options["properties"].headers or {}
            found[channel].append((options["exchange"], headers.get(HEADER)))
            return method(channel, *arguments, **options)

        return noting

    for name in ("publish", "publish_telling"):
        monkeypatch.setattr(Channel, name, note(getattr(Channel, name)))
    return found


async def record(broker: BrokerConnection, job_ids: Iterable[str]) -> None:
    for job_id in job_ids:
        broker.events.record(job_id, JobCompleted(job_type="a", queue="q", duration_ms=0, attempt=1))
    assert await broker.events.drain(30)


async def test_each_stream_has_a_channel(broker_uri: str, published: defaultdict[Channel, list[Place]]) -> None:
    topology = Topology(prefix="channels.", event_partitions=PARTITIONS)
    broker = await BrokerConnection.open(broker_uri, topology, "/test", None)
    try:
        await broker.declarer.ensure_shared()
        await broker.declarer.ensure_relay()
        for _ in range(2):
            await record(broker, (f"job-{number}" for number in range(30)))
            await broker.tell_workers(QUIET, ControlRequest(worker_id="nobody"))
    finally:
        await broker.close()
    streams = [{place} for place in ((topology.relay, None), *((topology.events, n) for n in range(PARTITIONS)))]
    assert sorted(map(str, (set(places) for places in published.values()))) == sorted(map(str, streams))


async def test_a_channel_with_a_returned_message_is_replaced(
    broker_uri: str, published: defaultdict[Channel, list[Place]]
) -> None:
    topology = Topology(prefix="replaced.", event_partitions=PARTITIONS)
    broker = await BrokerConnection.open(broker_uri, topology, "/test", None)
    # What belongs to another partition goes to the first one if its own is missing.
    job_id = next(one for one in map(str, range(100)) if partition_of_job(one, PARTITIONS) == 0)
    place = (topology.events, 0)
    try:
        await broker.declarer.ensure_shared()
        await broker.declarer.ensure_relay()
        async with await broker.connection.channel() as channel:
            await channel.delete_queue(topology.event_stream)
            await channel.delete_queue(topology.relay_stream)
        await record(broker, [job_id])
        with pytest.raises(MessageReturned):
            await broker.tell_workers(QUIET, ControlRequest(worker_id="nobody"))
        await broker.declarer.ensure_relay()
        before = {channel: list(places) for channel, places in published.items()}
        await record(broker, [job_id])
        with pytest.raises(MessageReturned):
            await broker.tell_workers(QUIET, ControlRequest(worker_id="nobody"))
    finally:
        await broker.close()
    returned = [channel for channel, places in before.items() if place in places]
    assert published[returned[0]].count(place) == before[returned[0]].count(place), "nothing more came over it"
    assert len([channel for channel, places in published.items() if (topology.relay, None) in places]) == 2
