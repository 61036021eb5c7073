"""Options of sources and sinks for the names of queues and exchanges, and the queues to declare."""

from typing import Final, TypeVar

from waybill.ojs import SPEC, WEB, Declaration, Names, Topology
from waybill.ojs.topology.topology import QueueType
from waybill.pipeline.named_options import NamedOptions, OptionError

TOPOLOGY_OPTIONS: Final = (
    *("profile", "prefix", "declare", "queueType", "maxPriority", "maxLength", "maxLengthBytes", "messageTtlMs"),
    *("whenFull", "deduplicate", "settleBy"),
)
_PROFILES: Final[dict[str, Names]] = {"spec": SPEC, "web": WEB}
_QUEUE_TYPES: Final[dict[str, QueueType]] = {"classic": "classic", "quorum": "quorum"}
_DECLARATIONS: Final = {
    "lazy": Declaration.LAZY,
    "eager": Declaration.EAGER,
    "never": Declaration.NEVER,
    # The queue must exist, with any arguments: the sender only checks, and declares nothing.
    "passive": Declaration.NEVER,
}
_REJECTS: Final = {"reject": True, "drop-oldest": False}
_NACKS: Final = {"ack": False, "nack": True}
T = TypeVar("T")


def parse_topology(options: NamedOptions) -> Topology:
    """The topology that the options of `TOPOLOGY_OPTIONS` describe. Raises OptionError."""
    priorities = options.count("maxPriority", 0)
    try:
        return Topology(
            names=_one_of(options, "profile", _PROFILES, "spec"),
            prefix=options.text("prefix") or "",
            queue_type=_one_of(options, "queueType", _QUEUE_TYPES, "classic"),
            declaration=_one_of(options, "declare", _DECLARATIONS, "lazy"),
            max_priority=Topology.max_priority if priorities is None else priorities,
            max_length=options.count("maxLength"),
            max_length_bytes=options.count("maxLengthBytes"),
            message_ttl_ms=options.count("messageTtlMs", 0),
            reject_when_full=_one_of(options, "whenFull", _REJECTS, "reject"),
            deduplicate=options.truth("deduplicate", default=False),
            settle_by="nack" if _one_of(options, "settleBy", _NACKS, "ack") else "ack",
        )
    except OptionError:
        raise
    except ValueError as problem:
        raise OptionError(str(problem)) from None


def is_passive(options: NamedOptions) -> bool:
    """Whether to check that the queues exist before anything is sent."""
    return options.text("declare") == "passive"


def _one_of(options: NamedOptions, name: str, values: dict[str, T], default: str) -> T:
    text = options.text(name) or default
    if text not in values:
        raise OptionError(f"option {name} must be {' or '.join(values)}, not {text!r}")
    return values[text]
