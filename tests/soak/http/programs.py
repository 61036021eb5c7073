"""The worker that is killed: `python -m tests.soak.http.programs URL DIRECTORY`. Its handlers are those over AMQP.

A killed worker's leases end by themselves, so they are short here. LEASE_SECONDS in the environment says how short.
"""

import os
import sys

from tests.soak.jobs.house import QUEUE
from tests.soak.jobs.programs import main
from waybill.http import fetching

if __name__ == "__main__":
    seconds = float(os.environ.get("LEASE_SECONDS", "10"))
    vars(fetching).update(VISIBILITY_SECONDS=seconds, BEAT_SECONDS=seconds / 4)
    sys.argv.append(QUEUE)
    main()
