"""The states of a circuit breaker, by a clock that the test moves on (ojs-federation sections 6.3 and 8.2)."""

from __future__ import annotations

from tests.federation.conftest import Clock, Hostile, layer_of, saying
from waybill.federation.breaker import CircuitBreaker


def breaker_of(clock: Clock, failures: int = 0) -> CircuitBreaker:
    breaker = CircuitBreaker(3, 30, clock)
    for _ in range(failures):
        assert breaker.allow()
        breaker.failed()
    return breaker


def test_it_opens_after_consecutive_failures_only() -> None:
    breaker = breaker_of(Clock(), 2)
    assert (breaker.state, breaker.failure_count) == ("closed", 2)
    breaker.succeeded()
    breaker.failed()
    breaker.failed()
    assert breaker.state == "closed"
    breaker.failed()
    assert (breaker.state, breaker.allow()) == ("open", False)


def test_a_single_probe_decides_after_the_cooldown() -> None:
    clock = Clock()
    breaker = breaker_of(clock, 3)
    clock.now += 29
    assert breaker.state == "open"
    clock.now += 1
    assert (breaker.state, breaker.allow(), breaker.allow(), breaker.is_ready) == ("half-open", True, False, False)
    breaker.failed()
    assert (breaker.state, breaker.allow()) == ("open", False)
    clock.now += 30
    assert breaker.allow()
    breaker.succeeded()
    assert (breaker.state, breaker.failure_count, breaker.allow(), breaker.allow()) == ("closed", 0, True, True)


def test_a_probe_whose_client_has_gone_makes_room_for_another() -> None:
    clock = Clock()
    breaker = breaker_of(clock, 3)
    clock.now += 30
    assert breaker.allow()
    breaker.gave_up()
    assert (breaker.state, breaker.allow()) == ("half-open", True)


def test_late_answers_neither_close_it_nor_prolong_it() -> None:
    clock = Clock()
    breaker = breaker_of(clock, 3)
    breaker.succeeded()
    assert breaker.state == "open"
    clock.now += 20
    breaker.failed()
    clock.now += 10
    assert breaker.state == "half-open"


async def test_requests_open_it_and_a_health_check_is_the_probe() -> None:
    clock = Clock()
    breaker = {"failure_threshold": 2}
    async with (
        Hostile(saying("500 Oops")) as bad,
        layer_of(bad.entry("bad"), clock=clock, circuit_breaker=breaker) as asking,
    ):
        await asking.push(503)
        region = asking.layer.regions.get("bad")
        assert region is not None
        # The push, and the question whether it has arrived.
        assert (region.breaker.state, len(bad.requests)) == ("open", 2)
        error = (await asking.push(503))["error"]
        assert "circuit breaker is open" in error["details"]["regions"]["bad"]
        assert len(bad.requests) == 2
        assert await region.check()
        assert region.breaker.state == "open"
        clock.now += 30
        found = (await asking.ask("GET", "/v1/federation/regions"))["regions"][0]
        assert (found["status"], found["circuit_breaker"]) == ("healthy", "half-open")
        assert await region.check()
        assert region.breaker.state == "closed"


async def test_good_health_does_not_hide_that_requests_fail() -> None:
    breaker = {"failure_threshold": 4}
    async with Hostile(saying("500 Oops")) as bad, layer_of(bad.entry("bad"), circuit_breaker=breaker) as asking:
        await asking.push(503)
        await asking.layer.regions.check()
        await asking.push(503)
        found = (await asking.ask("GET", "/ojs/federation/backends"))["backends"][0]
        assert (found["name"], found["healthy"], found["circuit_breaker"]) == ("bad", True, "open")
