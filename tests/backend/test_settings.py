"""The cached settings of a server: what is read after a change, and what is lost to none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.backend.conftest import Client
from waybill.backend import settings
from waybill.backend.backend import Backend
from waybill.backend.limits import Override
from waybill.ojs import Jobs
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.spec.timestamps import format_timestamp


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prefixes of which all rows were read."""
    found: list[str] = []
    read = JobView.listed

    async def note(self: JobView, prefix: str, *given: Any) -> Any:
        found.append(prefix)
        return await read(self, prefix, *given)

    monkeypatch.setattr(JobView, "listed", note)
    return found


async def test_a_change_is_read_without_the_others(
    client: Client, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "POLL_SECONDS", 3600.0)
    table = client.backend.limits.overrides
    for number in range(20):
        await table.put(f"key{number}", Override(concurrency=number))
    assert await table.remove("key7")
    assert not await table.put("key3", Override(), is_new=True)
    assert not [one for one in listed if "limit-override" in one]
    assert {name: one.concurrency for name, one in table.items()} == {
        f"key{number}": number for number in range(20) if number != 7
    }


async def test_a_change_copies_none_of_the_others(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand changes of thousands of settings copied and added up millions."""
    monkeypatch.setattr(settings, "POLL_SECONDS", 3600.0)
    table = client.backend.limits.overrides
    await table.put("a", Override(concurrency=1))
    known, version = table.known, table.version
    for number in range(5):
        await table.put(f"key{number}", Override(concurrency=number))
    await table.put("key3", Override(concurrency=1_000_000))
    assert await table.remove("key4")
    assert table.known is known
    assert table.version > version
    assert table._size == sum(len(record.raw) for record in table._raw.values())
    size = table._size
    await table.read()
    assert (table._size, len(table)) == (size, 5)


async def test_a_change_of_another_server_is_read_without_the_others(
    uri: str, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "POLL_SECONDS", 3600.0)
    async with Backend(Jobs(uri, results=False)) as one, Backend(Jobs(uri, results=False)) as other:
        listed.clear()
        await one.limits.overrides.put("key", Override(concurrency=1))
        await until(lambda: other.limits.overrides.get("key") == Override(concurrency=1))
        await one.limits.overrides.remove("key")
        await until(lambda: other.limits.overrides.get("key") is None)
        assert not [found for found in listed if "limit-override" in found]


async def test_more_changes_than_are_noted_are_all_read(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "POLL_SECONDS", 3600.0)
    monkeypatch.setattr(settings, "NOTED", 1)
    async with Backend(Jobs(uri, results=False)) as one, Backend(Jobs(uri, results=False)) as other:
        await one.limits.overrides.put("key", Override(concurrency=1))
        await until(lambda: other.limits.overrides.get("key") == Override(concurrency=1))


async def test_settings_that_expire_are_forgotten_while_others_change(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "POLL_SECONDS", 0.05)
    table = client.backend.limits.overrides
    soon = format_timestamp(datetime.now(UTC) + timedelta(milliseconds=100))
    await table.put("short", Override(concurrency=0), expires_at=soon)
    number = 0
    async with asyncio.timeout(20):
        while "short" in table.known:
            number += 1
            await table.put("long", Override(concurrency=number))


async def test_what_is_set_while_all_are_read_stays(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "POLL_SECONDS", 3600.0)
    monkeypatch.setattr(settings, "PAGE", 1)
    table = client.backend.limits.overrides
    for name in ("a", "b", "c"):
        await table.put(name, Override(concurrency=1))
    read = JobView.listed

    async def change(self: JobView, prefix: str, *given: Any) -> Any:
        found = await read(self, prefix, *given)
        if "limit-override" in prefix and "a" in table.known:
            table.put_soon("soon", Override(concurrency=2))
            await table.put("b", Override(concurrency=3))
            await table.remove("a")
        return found

    monkeypatch.setattr(JobView, "listed", change)
    await table.read()
    assert {name: one.concurrency for name, one in table.items()} == {"b": 3, "c": 1, "soon": 2}


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)
