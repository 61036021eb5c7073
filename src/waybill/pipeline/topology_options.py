"""The options of a source or sink of jobs that say how queues and exchanges are named, and of what kind they are."""

from typing import Final

from waybill.ojs import SPEC, WEB, Topology
from waybill.ojs.topology import QueueType
from waybill.pipeline.named_options import NamedOptions, OptionError

_PROFILES: Final = {"spec": SPEC, "web": WEB}
_QUEUE_TYPES: Final[dict[str, QueueType]] = {"classic": "classic", "quorum": "quorum"}


def parse_topology(options: NamedOptions) -> Topology:
    """What `profile`, `prefix` and `queueType` ask for. Raises OptionError."""
    profile = options.text("profile") or "spec"
    if profile not in _PROFILES:
        raise OptionError(f"option profile is spec or web, not {profile!r}")
    queue_type = options.text("queueType") or "classic"
    if queue_type not in _QUEUE_TYPES:
        raise OptionError(f"option queueType is classic or quorum, not {queue_type!r}")
    return Topology(names=_PROFILES[profile], prefix=options.text("prefix") or "", queue_type=_QUEUE_TYPES[queue_type])
