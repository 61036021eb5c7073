"""The worker that is killed: `python -m tests.soak.http.programs URL DIRECTORY`. Its handlers are those over AMQP.

A killed worker's leases end by themselves, so they are short here, and there is a job to lose at each kill.
"""

from waybill.http import fetching

fetching.VISIBILITY_SECONDS = 10.0  # type: ignore[misc]
fetching.BEAT_SECONDS = 2.0  # type: ignore[misc]

if __name__ == "__main__":
    import sys

    from tests.soak.jobs.house import QUEUE
    from tests.soak.jobs.programs import main

    sys.argv.append(QUEUE)
    main()
