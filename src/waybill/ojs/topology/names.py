"""The naming profiles: what each entity is called on a broker."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Names:
    """A naming profile; patterns take {queue} and {delay_ms}. The prefix of a topology precedes every name."""

    direct: str = "ojs.exchange.direct"
    dead_letter_exchange: str = "ojs.exchange.dlx"
    retry: str = "ojs.exchange.retry"
    delayed: str = "ojs.exchange.delayed"
    events: str = "ojs.exchange.events"
    event_stream: str = "ojs.events"
    event_partitions: str = "ojs.exchange.events.partitions"
    event_rest: str = "ojs.exchange.events.rest"
    relay: str = "ojs.exchange.control"
    relay_stream: str = "ojs.control"
    job_queue: str = "ojs.queue.{queue}"
    dead_letter_queue: str = "ojs.queue.dlx.{queue}"
    retry_queue: str = "ojs.queue.retry.{queue}.{delay_ms}"
    control_queue: str = "ojs.queue.control.{queue}"
    request_queue: str = "ojs.requests"
    leader_queue: str = "ojs.leader"
    release_queue: str = "ojs.queue.delay.{queue}"
    delay_level: str = "ojs.delay.{level:02}"
    delay_release: str = "ojs.delay.release"
    pause: str = "ojs.pause.{queue}"
    unique_place: str = "ojs.unique.{key}"
    partition: str = "ojs.partition.{queue}.{number}"
    partitions: str = "ojs.exchange.partitions.{queue}"


SPEC: Final = Names()
"""The names of the binding's specification: the default."""

WEB: Final = Names(
    direct="ojs.direct",
    dead_letter_exchange="ojs.dlx",
    retry="ojs.retry",
    delayed="ojs.delayed",
    dead_letter_queue="ojs.dead.{queue}",
)
"""The names of the binding's web page."""
