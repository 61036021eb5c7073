"""Lists: pages, filters, order, columns."""

import asyncio
import json

import pytest

from tests.management.api import running
from waybill.management import listing


async def test_pages() -> None:
    async with running() as api:
        for number in range(7):
            await api.queue(f"q{number}")
        page = await api.get("/queues?page=2&page_size=3")
        assert [one["name"] for one in page.pop("items")] == ["q3", "q4", "q5"]
        assert page == {
            "filtered_count": 7,
            "item_count": 3,
            "page": 2,
            "page_count": 3,
            "page_size": 3,
            "total_count": 7,
        }
        page = await api.get("/queues/%2F?page=1&page_size=3&name=Q6")
        assert (page["filtered_count"], page["total_count"], page["item_count"]) == (1, 7, 1)
        page = await api.get("/queues/%2F?page=1&name=q%5B12%5D%24&use_regex=true")
        assert [one["name"] for one in page["items"]] == ["q1", "q2"]


async def test_pages_that_are_none() -> None:
    async with running() as api:
        await api.queue("q")
        for query in (
            *("page=0", "page=x", "page=-1", "page=1&page_size=0", "page=1&page_size=501", "page=99"),
            "page=1&name=(&use_regex=true",
        ):
            assert (await api.ask("GET", f"/queues?{query}")).status == 400, query


async def test_order_and_columns() -> None:
    async with running() as api:
        for name in ("a", "b", "c"):
            await api.queue(name)
        await api.publish("b")
        found = await api.get("/queues?sort=messages&sort_reverse=true&columns=name,messages_details.rate")
        assert found[0] == {"name": "b", "messages_details": {"rate": 0.0}}
        assert [one["name"] for one in await api.get("/queues?sort=name&sort_reverse=true")] == ["c", "b", "a"]
        found = await api.get("/queues?sort=message_stats.publish&sort_reverse=true&columns=name")
        assert found[0] == {"name": "b"}
        assert list(await api.get("/overview?columns=object_totals.queues")) == ["object_totals"]
        assert await api.get("/queues/%2F/a?columns=name,durable") == {"name": "a", "durable": True}
        short = await api.get("/queues?disable_stats=true")
        assert "messages_details" not in short[0]


@pytest.mark.parametrize("order", ["", "&sort=name&sort_reverse=true", "&sort=message_stats.publish"])
async def test_a_long_list_is_made_while_it_is_read(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    monkeypatch.setattr(listing, "WHOLE_MAX", 99)
    async with running() as api:
        names = [f"q{number:03}" for number in range(100)]
        for name in names:
            await api.queue(name)
        found = [one["name"] for one in await api.get(f"/queues?columns=name{order}")]
        assert found == (names[::-1] if "reverse" in order else names)
        response = await api.begin("GET", f"/queues?columns=name{order}")
        assert response.stream is not None
        pieces = response.stream
        begun = await anext(pieces)
        # What is deleted or declared while the client reads harms nobody.
        await api.ask("DELETE", "/queues/%2F/q050")
        await api.queue("r")
        assert len(json.loads(begun + b"".join([piece async for piece in pieces]))) == 100
        assert (await api.begin("GET", "/queues?page=1")).stream is None


async def test_others_get_their_turn_while_a_long_list_is_made() -> None:
    async with running() as api:
        host = api.broker.node.virtual_hosts["/"]
        for number in range(300):
            host.declare_queue(
                f"q{number}", durable=False, auto_delete=False, exclusive_to=None, connection=None, arguments={}
            )
        turns = 0
        ended = False

        async def count() -> None:
            nonlocal turns
            while not ended:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        for path in ("/queues", "/queues?sort=message_stats.publish", "//metrics/per-object"):
            turns = 0
            await api.ask("GET", path)
            # 300 queues are several batches; a broker that waited for them all would have had one turn.
            assert turns > 300 / 50, path
        turns = 0
        await api.management.sampler.sample()
        assert turns > 1
        ended = True
        await counting


async def test_a_hostile_pattern_costs_little() -> None:
    async with running() as api:
        await api.queue("a" * 60)
        reply = await api.ask("GET", "/queues?page=1&use_regex=true&name=(a%2B)%2B%24b")
        assert reply.status in {200, 400}
