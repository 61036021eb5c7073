"""The length limits of a queue: `x-max-length`, `x-max-length-bytes` and `x-overflow`."""

from mypy_extensions import i64

from waybill.model.queue_arguments import NO_LIMIT, QueuePolicy


class QueueLimits:
    """How many messages and bytes may be ready. `refuses`: a full queue refuses publishes; else it drops the oldest."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.max_length: i64 = policy.max_length
        self.max_length_bytes: i64 = policy.max_length_bytes
        self.is_limited = policy.max_length != NO_LIMIT or policy.max_length_bytes != NO_LIMIT
        self.refuses = self.is_limited and policy.overflow != "drop-head"
        self.drops = self.is_limited and policy.overflow == "drop-head"
        self.dead_letters_refused = policy.overflow == "reject-publish-dlx"

    def are_kept(self, count: i64, size: i64) -> bool:
        """Whether a queue may have `count` messages of `size` bytes in total."""
        return (self.max_length == NO_LIMIT or count <= self.max_length) and (
            self.max_length_bytes == NO_LIMIT or size <= self.max_length_bytes
        )
