"""The open that the broker sends (1.0, 2.7.1)."""

from typing import Final

from waybill.engine.host import Host
from waybill.wire.amqp10.performatives import Open
from waybill.wire.amqp10.types import Symbol

DIALECT_PRODUCT: Final = "RabbitMQ"
DIALECT_VERSION: Final = "4.2.0"
"""The product whose addresses, filters, annotations and management node the broker has."""
CAPABILITIES: Final = ("ANONYMOUS-RELAY", "LINK_PAIR_V1_0")


def our_open(host: Host) -> Open:
    """An open with the limits of the node."""
    limits = host.limits
    return Open(
        container_id=host.name,
        max_frame_size=limits.frame_max,
        channel_max=limits.channel_max,
        # Half of our time-out, so that a peer that sends just in time is not considered silent (2.4.5).
        idle_time_out=limits.heartbeat_s * 500 or None,
        offered_capabilities=CAPABILITIES,
        properties={
            # Clients of RabbitMQ 4 insist on the product, and choose features by the version.
            Symbol("product"): DIALECT_PRODUCT,
            Symbol("version"): DIALECT_VERSION,
            Symbol("platform"): f"Waybill {host.product_version}",
            Symbol("node"): host.name,
        },
    )
