"""The limits of a broker by name, within what its descriptors allow."""

from collections.abc import Mapping
from typing import Final

from waybill.node.node import Limits
from waybill.transport.descriptors import descriptor_limit

# A quarter of the descriptors, less these, is for streams; an eighth stays free for everything else.
DESCRIPTORS_OF_STORE: Final = 64


def change_limits(limits: Limits, named: Mapping[str, float]) -> None:
    """Set limits by name, such as `frame_max`. Raises ValueError for an unknown name."""
    before = {name: getattr(limits, name, None) for name in named}
    for name, value in before.items():
        if value is None or isinstance(value, bool):
            raise ValueError(f"there is no limit {name!r}")
    for name, value in named.items():
        setattr(limits, name, float(value) if isinstance(before[name], float) else int(value))
    share_descriptors(limits)


def share_descriptors(limits: Limits) -> None:
    """Limit connections and streams so that the store can always open a file."""
    all_of_them = descriptor_limit()
    limits.connections_max = min(limits.connections_max, all_of_them // 2)
    limits.handshakes_max = min(limits.handshakes_max, all_of_them // 8)
    limits.streams_max = min(limits.streams_max, max(all_of_them // 4 - DESCRIPTORS_OF_STORE, 1))
