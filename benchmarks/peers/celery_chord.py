"""Celery: chords of numbers and their sum, on RabbitMQ, with results in Redis.

    python -m benchmarks.peers.celery_chord push|work URI RESULTS COUNT

`push` runs two chords of COUNT, the first to warm up, and prints one line of JSON about the second.
"""

import json
import sys
import time

from celery import Celery, chord

from benchmarks.peers.meter import cpu_seconds

QUEUE = "bench-celery-chord"

verb, uri, results, count = sys.argv[1:5]
app = Celery("bench", broker=uri, backend=results)
app.conf.update(
    task_default_queue=QUEUE,
    task_acks_late=True,
    broker_transport_options={"confirm_publish": True},
    worker_prefetch_multiplier=1000,
    broker_connection_retry_on_startup=True,
)


@app.task(name="bench.number")  # type: ignore[untyped-decorator]
def number(value: int) -> int:
    return value


@app.task(name="bench.total")  # type: ignore[untyped-decorator]
def total(values: list[int]) -> int:
    return sum(values)


def run(size: int) -> dict[str, float]:
    """Push a chord and wait for its sum."""
    began, used = time.perf_counter(), cpu_seconds()
    handle = chord(number.s(value) for value in range(size))(total.s())
    pushed = time.perf_counter() - began
    found = handle.get(timeout=600, interval=0.01)
    assert found == sum(range(size))  # noqa: S101 - a benchmark of what does not work is of no use
    return {"seconds": time.perf_counter() - began, "push_seconds": pushed, "pusher_cpu": cpu_seconds() - used}


if __name__ == "__main__":
    if verb == "push":
        run(min(int(count), 100))
        print(json.dumps(run(int(count))), flush=True)
    else:
        app.worker_main(
            ["worker", "--pool=solo", "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR"]
        )
