"""A shovel refuses the placeholder of a queue with partitions: it drops what it gets, and is empty."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.move.test_shovel import drain, fill, odd_messages
from waybill.broker import Broker
from waybill.client import connect
from waybill.move import Bridge, Destination, From, MoveFailed, Shovel, To
from waybill.ojs import Jobs, Topology
from waybill.ojs.topology.names import SPEC, WEB, Names

KEY = "letters"


@pytest.fixture
async def uris() -> AsyncIterator[tuple[str, str]]:
    async with Broker(port=0) as source, Broker(port=0) as target:
        yield source.uri(), target.uri()


async def divided_queue(uri: str, names: Names = SPEC) -> Topology:
    topology = Topology(names=names, prefix="tenant.", partitions={KEY: 3})
    async with Jobs(uri, topology=topology) as jobs:
        await jobs.push("letter.write", [], queue=KEY)
    return topology


@pytest.mark.parametrize("names", [SPEC, WEB])
async def test_nothing_is_sent_to_a_placeholder_and_the_error_names_the_way(
    uris: tuple[str, str], names: Names
) -> None:
    one, other = uris
    topology = await divided_queue(other, names)
    placeholder, exchange = Destination(topology.job_queue(KEY)), topology.partitions_exchange(KEY)
    messages = odd_messages(20, seed=8)
    async with connect(one) as source, connect(other) as target:
        await fill(source, "q", messages)
        for refused in (Shovel(one, "q", other, placeholder), Bridge(From(one, "q"), To(other, placeholder))):
            with pytest.raises(MoveFailed, match=f"--to-exchange {exchange} --to-key {KEY}"):
                await refused.run()
        assert await Shovel(one, "q", other, Destination(KEY, exchange)).run() == 20
        arrived = [message for queue in topology.job_queues(KEY) for message in await drain(target, queue)]
    # And the job that declared the queue.
    assert len(arrived) == 21
    assert set(messages) < set(arrived)


async def test_a_placeholder_as_the_source_is_an_error_not_an_empty_queue(uris: tuple[str, str]) -> None:
    one, other = uris
    placeholder, to = (await divided_queue(one)).job_queue(KEY), Destination("q")
    async with connect(other) as target:
        await fill(target, "q", [])
    shovel = Shovel(one, placeholder, other, to)
    for refused in (shovel.waiting(), shovel.run(), Bridge(From(one, placeholder), To(other, to)).run()):
        with pytest.raises(MoveFailed, match=r"has partitions: move each \(tenant.ojs.partition.letters.0"):
            await refused
