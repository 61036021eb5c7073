"""Limits wrong passwords by address: each guess costs a slow hash, on the node's only thread."""

import ipaddress
from typing import Final

BURST: Final = 20
PER_SECOND: Final = 1.0
ADDRESS_LIMIT: Final = 4096


class LoginGuard:
    """A token bucket for each address: full at first, a wrong password takes a token, and time refills it.

    Addresses are hosts, and in IPv6 networks of 64 bits, which one host can own. When there are too many, the least
    recently active are forgotten. With an empty bucket, only users who have logged in from the address before can log
    in; all others are refused without a check of the password.
    """

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[float, float]] = {}
        self._known: dict[tuple[str, str], None] = {}

    def logged_in(self, user: str, peer_address: str) -> None:
        """Record a login of a user from this address."""
        key = (_source(peer_address), user)
        self._known.pop(key, None)
        if len(self._known) >= ADDRESS_LIMIT:
            del self._known[next(iter(self._known))]
        self._known[key] = None

    def is_known(self, user: str, peer_address: str) -> bool:
        """Whether that user has logged in from this address before."""
        return (_source(peer_address), user) in self._known

    def may_guess(self, peer_address: str, now: float) -> bool:
        """Whether a password from `host:port` is checked."""
        return self._guesses(_source(peer_address), now) >= 1.0

    def guessed_wrong(self, peer_address: str, now: float) -> None:
        """Take one guess from the bucket of this address."""
        source = _source(peer_address)
        guesses = self._guesses(source, now) - 1.0
        self._buckets.pop(source, None)
        if len(self._buckets) >= ADDRESS_LIMIT:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[source] = (guesses, now)

    def _guesses(self, source: str, now: float) -> float:
        bucket = self._buckets.get(source)
        if bucket is None:
            return float(BURST)
        guesses, at = bucket
        return min(float(BURST), guesses + max(0.0, now - at) * PER_SECOND)


def _source(peer_address: str) -> str:
    host = peer_address.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return address.exploded[:19] if isinstance(address, ipaddress.IPv6Address) else host
