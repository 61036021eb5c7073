"""Passwords over HTTP: guesses are limited with those over AMQP, counted, and checked one at a time."""

import asyncio

import pytest

from tests.management.api import Api, running
from waybill.client import AuthenticationFailed, connect
from waybill.node.login_guard import BURST


class HeldClock:
    """The time of changes over HTTP: it stands still, however slow the machine is."""

    def __init__(self, now: float) -> None:
        self.time = now

    def now(self) -> float:
        return self.time


def hold_clock(api: Api, monkeypatch: pytest.MonkeyPatch) -> HeldClock:
    held = HeldClock(api.broker.changes._clock.now())
    monkeypatch.setattr(api.broker.changes, "_clock", held)
    return held


async def test_guesses_over_http_and_amqp_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as api:
        await api.user("amy", "monitoring")
        clock = hold_clock(api, monkeypatch)
        # For AMQP, whose clock goes on, these guesses are still to come: none has come back by then.
        clock.time += 3600.0
        for number in range(BURST - 1):
            assert (await api.ask("GET", "/whoami", login=f"amy:wrong{number}")).status == 401
        with pytest.raises(AuthenticationFailed):
            await connect(api.broker.uri().replace("guest:guest", "amy:wrong"))
        clock.time -= 3600.0
        # Who has not been let in from there before is refused for a while, with the right password too.
        assert (await api.ask("GET", "/whoami", login="amy:amy")).status == 401
        assert (await api.ask("GET", "/whoami")).status == 200


async def test_guesses_come_back_though_nobody_uses_amqp(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as api:
        await api.user("amy", "monitoring")
        clock = hold_clock(api, monkeypatch)
        for number in range(BURST):
            await api.ask("GET", "/whoami", login=f"amy:wrong{number}")
        assert (await api.ask("GET", "/whoami", login="amy:amy")).status == 401
        clock.time += 2.0
        assert (await api.ask("GET", "/whoami", login="amy:amy")).status == 200


async def attempts_of(api: Api) -> dict[str, tuple[int, int]]:
    node = (await api.get("/overview"))["node"]
    found = await api.get(f"/auth/attempts/{node}")
    for one in found:
        assert one["auth_attempts"] == one["auth_attempts_succeeded"] + one["auth_attempts_failed"]
    return {one["protocol"]: (one["auth_attempts_succeeded"], one["auth_attempts_failed"]) for one in found}


async def test_attempts_are_counted_by_protocol() -> None:
    async with running() as api:
        assert await attempts_of(api) == {"http": (2, 0)}
        async with connect(api.broker.uri()):
            pass
        await api.ask("GET", "/whoami", login="guest:wrong")
        with pytest.raises(AuthenticationFailed):
            await connect(api.broker.uri().replace("guest:guest", "guest:wrong"))
        assert await attempts_of(api) == {"amqp091": (1, 1), "http": (4, 1)}
        metrics = (await api.ask("GET", "//metrics", login=None)).octets.decode()
        assert 'rabbitmq_auth_attempts_failed_total{protocol="amqp091"} 1\n' in metrics
        node = (await api.get("/overview"))["node"]
        assert await api.get(f"/auth/attempts/{node}/source") == []
        assert (await api.ask("DELETE", f"/auth/attempts/{node}")).status == 204
        assert await attempts_of(api) == {"http": (2, 0)}


async def test_others_are_served_between_two_slow_hashes() -> None:
    async with running() as api:
        checks = api.broker.node.administration.accounts
        guesses = [asyncio.ensure_future(api.ask("GET", "/whoami", login=f"guest:{n}")) for n in range(10)]
        most = 0
        while not all(one.done() for one in guesses):
            before = checks.slow_checks
            await asyncio.sleep(0)
            most = max(most, checks.slow_checks - before)
        assert {one.result().status for one in guesses} == {401}
        assert most == 1
