"""Which clients count as one address."""

import pytest

from waybill.backend.peer import address_of, peer_text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("192.0.2.1", 1), ("192.0.2.1", 2)),
        (("2001:db8::1", 1, 0, 0), ("2001:db8::ffff:1:2:3", 1, 0, 0)),
        (("::ffff:192.0.2.1", 1, 0, 0), ("192.0.2.1", 2)),
        ((), ""),
    ],
)
def test_these_are_one(one: object, other: object) -> None:
    assert address_of(peer_text(one)) == address_of(peer_text(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("192.0.2.1", 1), ("192.0.2.2", 1)),
        (("2001:db8::1", 1, 0, 0), ("2001:db8:0:1::1", 1, 0, 0)),
        (("fe80::1%eth0", 1, 0, 2), ("2001:db8::1", 1, 0, 0)),
        (("::ffff:192.0.2.1", 1, 0, 0), ("::ffff:192.0.2.2", 1, 0, 0)),
    ],
)
def test_these_are_two(one: object, other: object) -> None:
    assert address_of(peer_text(one)) != address_of(peer_text(other))
