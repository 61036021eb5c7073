"""The addresses of clients."""

from __future__ import annotations

import functools
import ipaddress
from typing import Final

ADDRESSES_REMEMBERED: Final = 1000


def peer_text(address: object) -> str:
    """Return the address of a client as `host:port`."""
    if not isinstance(address, tuple) or len(address) < 2:
        return ""
    host, port = str(address[0]), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(peer: str) -> str:
    """Return the address without the port; of IPv6, the /64 network, since one client may have all of it."""
    host = peer.rpartition(":")[0]
    return _network(host) if host.startswith("[") else host


@functools.lru_cache(ADDRESSES_REMEMBERED)
def _network(host: str) -> str:
    try:
        address = ipaddress.IPv6Address(host.strip("[]"))
    except ValueError:
        return host
    return address.packed[:8].hex() if address.ipv4_mapped is None else str(address.ipv4_mapped)
