"""Frame bodies of connections, sessions and links (1.0, 2.7)."""

from dataclasses import dataclass
from typing import Final

from mypy_extensions import i64

from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.composite import Composite, composite, decode_composite
from waybill.wire.amqp10.error import Error
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.messaging import Source, Target
from waybill.wire.amqp10.transactions import Coordinator
from waybill.wire.amqp10.types import Described

ROLE_SENDER: Final = False
ROLE_RECEIVER: Final = True

SENDER_UNSETTLED: Final = 0
SENDER_SETTLED: Final = 1
SENDER_MIXED: Final = 2

RECEIVER_FIRST: Final = 0
RECEIVER_SECOND: Final = 1

MAX_UINT: Final = 0xFFFFFFFF
MAX_USHORT: Final = 0xFFFF

DELIVERY_TAG_LIMIT: Final = 32
"""The maximum size of a delivery-tag in octets (2.8.7)."""


@composite(
    descriptors.OPEN,
    "container_id:string! hostname:string max_frame_size:uint channel_max:ushort idle_time_out:uint "
    "outgoing_locales:symbol[] incoming_locales:symbol[] offered_capabilities:symbol[] "
    "desired_capabilities:symbol[] properties:fields",
)
@dataclass(frozen=True)
class Open(Composite):
    """Begin a connection. `idle_time_out` is in milliseconds, `max_frame_size` in octets."""

    container_id: str
    hostname: str | None = None
    max_frame_size: int = MAX_UINT
    channel_max: int = MAX_USHORT
    idle_time_out: int | None = None
    outgoing_locales: tuple[str, ...] = ()
    incoming_locales: tuple[str, ...] = ()
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    properties: dict[str, object] | None = None


@composite(
    descriptors.BEGIN,
    "remote_channel:ushort next_outgoing_id:uint! incoming_window:uint! outgoing_window:uint! handle_max:uint "
    "offered_capabilities:symbol[] desired_capabilities:symbol[] properties:fields",
)
@dataclass(frozen=True, kw_only=True)
class Begin(Composite):
    """Begin a session. Windows count transfers; only the answer has a `remote_channel`."""

    remote_channel: int | None = None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int = MAX_UINT
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    properties: dict[str, object] | None = None


@composite(
    descriptors.ATTACH,
    "name:string! handle:uint! role:boolean! snd_settle_mode:ubyte rcv_settle_mode:ubyte source:source target:target "
    "unsettled:unsettled incomplete_unsettled:boolean initial_delivery_count:uint max_message_size:ulong "
    "offered_capabilities:symbol[] desired_capabilities:symbol[] properties:fields",
)
@dataclass(frozen=True)
class Attach(Composite):
    """Attach a link. `role` is ROLE_SENDER or ROLE_RECEIVER, `max_message_size` in octets (None or 0: no limit)."""

    name: str
    handle: int
    role: bool
    snd_settle_mode: int = SENDER_MIXED
    rcv_settle_mode: int = RECEIVER_FIRST
    source: Source | Described | None = None
    target: Target | Coordinator | Described | None = None
    unsettled: dict[bytes, Composite | Described | None] | None = None
    incomplete_unsettled: bool = False
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    properties: dict[str, object] | None = None


@composite(
    descriptors.FLOW,
    "next_incoming_id:uint incoming_window:uint! next_outgoing_id:uint! outgoing_window:uint! handle:uint "
    "delivery_count:uint link_credit:uint available:uint drain:boolean echo:boolean properties:fields",
)
@dataclass(frozen=True, kw_only=True)
class Flow(Composite):
    """The state of a session, and with `handle` of a link. Windows count transfers, credit counts deliveries."""

    next_incoming_id: int | None = None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool = False
    echo: bool = False
    properties: dict[str, object] | None = None


@composite(
    descriptors.TRANSFER,
    "handle:uint! delivery_id:uint delivery_tag:binary message_format:uint settled:boolean more:boolean "
    "rcv_settle_mode:ubyte state:state resume:boolean aborted:boolean batchable:boolean",
)
@dataclass(frozen=True)
class Transfer(Composite):
    """A message or part of one, which is the payload of the frame. See `transfer` for the hot path."""

    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool = False
    rcv_settle_mode: int | None = None
    state: Composite | Described | None = None
    resume: bool = False
    aborted: bool = False
    batchable: bool = False


@composite(
    descriptors.DISPOSITION,
    "role:boolean! first:uint! last:uint settled:boolean state:state batchable:boolean",
)
@dataclass(frozen=True)
class Disposition(Composite):
    """The state of deliveries. `role` is that of the sending endpoint. See `disposition` for the hot path."""

    role: bool
    first: int
    last: int | None = None
    settled: bool = False
    state: Composite | Described | None = None
    batchable: bool = False


@composite(descriptors.DETACH, "handle:uint! closed:boolean error:error")
@dataclass(frozen=True)
class Detach(Composite):
    """Detach a link; with `closed`, for good."""

    handle: int
    closed: bool = False
    error: Error | None = None


@composite(descriptors.END, "error:error")
@dataclass(frozen=True)
class End(Composite):
    """End a session."""

    error: Error | None = None


@composite(descriptors.CLOSE, "error:error")
@dataclass(frozen=True)
class Close(Composite):
    """End a connection."""

    error: Error | None = None


Performative = Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close

PERFORMATIVES: Final = (Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close)


def decode_performative(data: bytes, offset: i64 = 0, end: i64 = -1) -> tuple[Performative, int]:
    """Decode the performative of a frame. Returns it and the offset of the payload. Raises DecodeError."""
    value, after = decode_composite(data, offset, end)
    if not isinstance(value, PERFORMATIVES):
        raise DecodeError(f"{value.NAME} is not a performative")
    return value, after
