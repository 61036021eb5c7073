"""Messages and jobs from one broker to another. Both brokers are known by AMQP only, and may be of any kind.

`Shovel` moves a queue, `JobsMove` a whole system of jobs. What they promise, and how, is in `transfer`. `Bridge` moves
a queue where one broker, or both, are to be spoken to in AMQP 1.0.
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
