"""Delivery states, sources, targets and lifetimes of dynamic nodes (1.0, 3.4 and 3.5)."""

from dataclasses import dataclass
from typing import Final

from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.composite import COMPOSITE, Composite, composite, from_described
from waybill.wire.amqp10.error import Error
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.types import Array, Described, Symbol

DURABLE_NONE: Final = 0
DURABLE_CONFIGURATION: Final = 1
DURABLE_UNSETTLED_STATE: Final = 2

EXPIRE_ON_LINK_DETACH: Final = "link-detach"
EXPIRE_ON_SESSION_END: Final = "session-end"
EXPIRE_ON_CONNECTION_CLOSE: Final = "connection-close"
EXPIRE_NEVER: Final = "never"

DISTRIBUTION_MOVE: Final = "move"
DISTRIBUTION_COPY: Final = "copy"

LIFETIME_POLICY: Final = "lifetime-policy"
SUPPORTED_DISTRIBUTION_MODES: Final = "supported-dist-modes"


@composite(descriptors.RECEIVED, "section_number:uint! section_offset:ulong!")
@dataclass(frozen=True)
class Received(Composite):
    """How much of a message has arrived. Not terminal: it is used to resume deliveries."""

    section_number: int
    section_offset: int


@composite(descriptors.ACCEPTED)
@dataclass(frozen=True)
class Accepted(Composite):
    """The message was processed."""


@composite(descriptors.REJECTED, "error:error")
@dataclass(frozen=True)
class Rejected(Composite):
    """The message is invalid and cannot be processed."""

    error: Error | None = None


@composite(descriptors.RELEASED)
@dataclass(frozen=True)
class Released(Composite):
    """The message was not processed, and is available again."""


@composite(descriptors.MODIFIED, "delivery_failed:boolean undeliverable_here:boolean message_annotations:named")
@dataclass(frozen=True)
class Modified(Composite):
    """The message was not processed, and is available again with these changes."""

    delivery_failed: bool = False
    undeliverable_here: bool = False
    message_annotations: dict[str, object] | None = None


@composite(
    descriptors.SOURCE,
    "address:string durable:uint expiry_policy:symbol timeout:uint dynamic:boolean dynamic_node_properties:fields "
    "distribution_mode:symbol filter:fields default_outcome:outcome outcomes:symbol[] capabilities:symbol[]",
)
@dataclass(frozen=True)
class Source(Composite):
    """The source of a link's messages. `timeout` is in seconds, `durable` one of DURABLE_."""

    address: str | None = None
    durable: int = DURABLE_NONE
    expiry_policy: str = EXPIRE_ON_SESSION_END
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: dict[str, object] | None = None
    distribution_mode: str | None = None
    filter: dict[str, object] | None = None
    default_outcome: Composite | Described | None = None
    outcomes: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


@composite(
    descriptors.TARGET,
    "address:string durable:uint expiry_policy:symbol timeout:uint dynamic:boolean dynamic_node_properties:fields "
    "capabilities:symbol[]",
)
@dataclass(frozen=True)
class Target(Composite):
    """The target of a link's messages. `timeout` is in seconds, `durable` one of DURABLE_."""

    address: str | None = None
    durable: int = DURABLE_NONE
    expiry_policy: str = EXPIRE_ON_SESSION_END
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: dict[str, object] | None = None
    capabilities: tuple[str, ...] = ()


@composite(descriptors.DELETE_ON_CLOSE)
@dataclass(frozen=True)
class DeleteOnClose(Composite):
    """A dynamic node lives as long as the link that created it."""


@composite(descriptors.DELETE_ON_NO_LINKS)
@dataclass(frozen=True)
class DeleteOnNoLinks(Composite):
    """A dynamic node lives as long as there is a link to it."""


@composite(descriptors.DELETE_ON_NO_MESSAGES)
@dataclass(frozen=True)
class DeleteOnNoMessages(Composite):
    """A dynamic node lives as long as the link that created it, and then until it is empty."""


@composite(descriptors.DELETE_ON_NO_LINKS_OR_MESSAGES)
@dataclass(frozen=True)
class DeleteOnNoLinksOrMessages(Composite):
    """A dynamic node lives as long as there is a link to it or a message in it."""


LifetimePolicy = DeleteOnClose | DeleteOnNoLinks | DeleteOnNoMessages | DeleteOnNoLinksOrMessages

LIFETIME_POLICIES: Final = (DeleteOnClose, DeleteOnNoLinks, DeleteOnNoMessages, DeleteOnNoLinksOrMessages)


def lifetime_policy(node_properties: dict[str, object] | None) -> LifetimePolicy | None:
    """The lifetime policy in the properties of a dynamic node (3.5.9), None if there is none.

    Raises DecodeError if the value is not a lifetime policy.
    """
    value = None if node_properties is None else node_properties.get(LIFETIME_POLICY)
    if value is None:
        return None
    policy = value if isinstance(value, COMPOSITE) else from_described(value)
    if not isinstance(policy, LIFETIME_POLICIES):
        raise DecodeError(f"{policy.NAME} is not a lifetime policy")
    return policy


def check_node_properties(node_properties: dict[str, object] | None) -> None:
    """Raises DecodeError for node properties with values of the wrong types (3.5.9)."""
    lifetime_policy(node_properties)
    modes = None if node_properties is None else node_properties.get(SUPPORTED_DISTRIBUTION_MODES)
    if modes is None or isinstance(modes, Symbol):
        return
    items: list[object] = []
    if isinstance(modes, Array):
        items = list(modes.items)
    elif isinstance(modes, list):
        # 1.4 demands an array, but the meaning is clear.
        items = modes
    else:
        raise DecodeError(f"{SUPPORTED_DISTRIBUTION_MODES} are symbols, not {type(modes).__name__}")
    for item in items:
        if not isinstance(item, Symbol):
            raise DecodeError(f"{SUPPORTED_DISTRIBUTION_MODES} are symbols, not {type(item).__name__}")
