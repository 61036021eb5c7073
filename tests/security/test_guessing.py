"""Guessing passwords: each wrong one costs a slow hash, so an address has only so many a second."""

from tests.engine.server.peer import Cut, NodeBench
from waybill.node.login_guard import ADDRESS_LIMIT, BURST, LoginGuard

ADDRESS = "192.0.2.1:40000"


def test_an_address_that_guesses_must_wait() -> None:
    bench = NodeBench(Cut.WHOLE)
    node = bench.node
    node.administration.put_user("bob", "right")
    node.administration.put_user("amy", "known")
    assert node.authenticate("amy", "known", ADDRESS) is not None
    for number in range(BURST):
        assert node.authenticate("bob", f"wrong{number}", ADDRESS) is None
    assert node.authenticate("bob", "right", ADDRESS) is None
    assert node.authenticate("amy", "known", ADDRESS) is not None
    assert node.authenticate("bob", "right", "192.0.2.2:40000") is not None
    node.administration.put_user("bob", "other")
    bench.node.runtime.now += 1.0
    assert node.authenticate("bob", "other", ADDRESS) is not None


def test_guesses_come_back_with_time_and_never_more_than_at_first() -> None:
    guard = LoginGuard()
    for _ in range(BURST):
        guard.guessed_wrong(ADDRESS, 0.0)
    assert not guard.may_guess(ADDRESS, 0.5)
    assert guard.may_guess(ADDRESS, 1.0)
    for _ in range(BURST):
        guard.guessed_wrong(ADDRESS, 1e6)
    assert not guard.may_guess(ADDRESS, 1e6)


def test_a_network_of_64_bits_is_one_address() -> None:
    guard = LoginGuard()
    for number in range(BURST):
        guard.guessed_wrong(f"[2001:db8::{number:x}]:1", 0.0)
    assert not guard.may_guess("[2001:db8::ffff]:1", 0.0)
    assert guard.may_guess("[2001:db8:0:1::1]:1", 0.0)


def test_what_is_remembered_is_bounded() -> None:
    guard = LoginGuard()
    for number in range(ADDRESS_LIMIT + 10):
        guard.guessed_wrong(f"host{number}:1", 0.0)
    assert len(guard._buckets) == ADDRESS_LIMIT
