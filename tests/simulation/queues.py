"""The queues of the workload: how they are declared, and what that allows the broker to do with their messages."""

from dataclasses import dataclass
from typing import Final

FOREVER: Final = float("inf")
DEAD: Final = "dead."


@dataclass(frozen=True)
class QueueSpec:
    """A queue of the workload.

    `levels`: how many priorities it has; order holds within each, and in none if there are 0. `ttl_s` and `max_length`
    and `max_bytes`: its limits; `refuses`: it refuses what is too much, instead of dropping what is oldest.
    `delivery_limit`: how often a message may come back. `dead_letter_to`: where its dead go. `is_volatile`: it may be
    purged and deleted at any time. `is_roaming`: its binding to the fanout exchange comes and goes. `is_private`: it is
    one channel's, and goes with it or with its consumer.
    """

    name: str
    durable: bool = True
    arguments: tuple[tuple[str, object], ...] = ()
    dead_letter_to: str | None = None
    levels: int = 1
    ttl_s: float = FOREVER
    max_length: int | None = None
    max_bytes: int | None = None
    refuses: bool = False
    delivery_limit: int | None = None
    single_active: bool = False
    is_stream: bool = False
    is_volatile: bool = False
    is_roaming: bool = False
    is_private: bool = False
    exclusive: bool = False

    @property
    def is_limited(self) -> bool:
        return self.max_length is not None or self.max_bytes is not None

    @property
    def is_dead_end(self) -> bool:
        """A queue for dead letters: nothing else is published to it."""
        return self.name.startswith(DEAD)

    @property
    def is_steady(self) -> bool:
        """It is always there, and always bound."""
        return not (self.is_volatile or self.is_roaming or self.is_private)


def _dying(name: str, *arguments: tuple[str, object], **settings: object) -> QueueSpec:
    """A queue with dead letters."""
    dead = DEAD + name
    routing = (("x-dead-letter-exchange", ""), ("x-dead-letter-routing-key", dead))
    return QueueSpec(name, arguments=(*arguments, *routing), dead_letter_to=dead, **settings)  # type: ignore[arg-type]


QUORUM: Final = ("x-queue-type", "quorum")
STREAM: Final = ("x-queue-type", "stream")

QUEUES: Final = (
    QueueSpec("plain"),
    QueueSpec("other"),
    QueueSpec("fleeting", durable=False),
    QueueSpec("levels", arguments=(("x-max-priority", 3),), levels=4),
    QueueSpec("counted", arguments=(QUORUM, ("x-delivery-limit", 1_000_000))),
    QueueSpec("single", arguments=(("x-single-active-consumer", True),), single_active=True),
    QueueSpec("patient", arguments=(("x-message-ttl", 3_600_000),), ttl_s=3600.0),
    QueueSpec("narrow", arguments=(("x-max-length", 6),), max_length=6),
    QueueSpec(
        "strict",
        arguments=(("x-max-length", 6), ("x-overflow", "reject-publish")),
        max_length=6,
        refuses=True,
    ),
    QueueSpec("volatile", is_volatile=True),
    QueueSpec("roaming", is_roaming=True),
    QueueSpec("log", arguments=(STREAM,), is_stream=True),
    QueueSpec(
        "rolling",
        arguments=(STREAM, ("x-max-length-bytes", 4000), ("x-stream-max-segment-size-bytes", 1000)),
        is_stream=True,
        max_bytes=4000,
    ),
    _dying("mortal"),
    _dying("brief", ("x-message-ttl", 300), ttl_s=0.3),
    _dying("small", ("x-max-length-bytes", 2000), max_bytes=2000),
    _dying("crowded", ("x-max-length", 10), max_length=10),
    _dying("closed", ("x-max-length", 6), ("x-overflow", "reject-publish-dlx"), max_length=6, refuses=True),
    _dying("limited", QUORUM, ("x-delivery-limit", 2), delivery_limit=2),
)


def dead_queues(specs: list[QueueSpec]) -> list[QueueSpec]:
    """The queues that the dead letters of others go to. Whoever died last comes last, not who was published last."""
    return [QueueSpec(spec.dead_letter_to, levels=0) for spec in specs if spec.dead_letter_to is not None]
