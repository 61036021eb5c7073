"""Moves messages and jobs from one broker to another, over AMQP only, so both may be of any kind.

`Shovel` moves a queue, `JobsMove` a whole job system. `transfer` describes their guarantees. `Bridge` moves a queue if
one broker or both use AMQP 1.0.
"""

from waybill.move.bridge import Bridge, From, To
from waybill.move.errors import MoveFailed
from waybill.move.jobs_move import JobsMove, Moved, System
from waybill.move.plan import PlannedQueue
from waybill.move.shovel import Destination, Shovel

__all__ = [
    "Bridge",
    "Destination",
    "From",
    "JobsMove",
    "MoveFailed",
    "Moved",
    "PlannedQueue",
    "Shovel",
    "System",
    "To",
]
