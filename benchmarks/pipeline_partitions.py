"""Reads the same events from one stream and from a super stream of four partitions, on the cores of this machine.

    python -m benchmarks.pipeline_partitions --events 1000000

The broker, Spark and its Python workers share the cores.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from tests.pipeline.own_broker import OwnBroker
from waybill.client import blocking
from waybill.pipeline.session import local_session

_SENT_AT_ONCE = 50_000


def bodies(count: int) -> list[bytes]:
    """Events of one size, as messages of one event."""
    data = {"job_type": "email.send", "queue": "email", "worker_id": "worker-1", "attempt": 1}
    return [
        json.dumps(
            {
                "specversion": "1.0",
                "id": f"evt_{number:012}",
                "type": "job.started",
                "source": "urn:ojs:benchmark",
                "time": "2026-01-01T00:00:00.000Z",
                "subject": f"0198c8f8-0000-7000-8000-{number:012}",
                "data": data,
            }
        ).encode()
        for number in range(count)
    ]


def fill(uri: str, events: int) -> None:
    """Put the same messages into `single`, and in turns into the partitions of `parts`."""
    with blocking.connect(uri) as connection:
        channel = connection.channel()
        channel.declare_super_stream("single", 1)
        channel.declare_super_stream("parts", 4)
        sent = bodies(events)
        for start in range(0, events, _SENT_AT_ONCE):
            block = sent[start : start + _SENT_AT_ONCE]
            channel.publish_many(block, exchange="single", routing_key="0")
            for part in range(4):
                channel.publish_many(block[part::4], exchange="parts", routing_key=str(part))


def read(spark: SparkSession, uri: str, name: str, form: str) -> float:
    """Seconds of one read."""
    began = time.monotonic()
    rows = spark.read.format(form).options(uri=uri, superStream=name).load()
    rows.write.format("noop").mode("overwrite").save()
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, OwnBroker(Path(directory) / "broker") as broker:
        fill(broker.uri, given.events)
        spark = local_session("partitions", cores=os.cpu_count() or 1, log_file=Path(directory) / "spark.log")
        for form in ("amqp", "ojs"):
            taken: dict[str, list[float]] = {"single": [], "parts": []}
            # Both in turn, so that other work on the machine hits both. The first runs warm the session.
            for _ in range(given.runs + 1):
                for name, found in taken.items():
                    found.append(read(spark, broker.uri, name, form))
            one, four = (statistics.median(found[1:]) for found in taken.values())
            print(f"{form}: {given.events / one:,.0f} rows/s of one stream, {given.events / four:,.0f} of four", end="")
            print(f" partitions, ratio {one / four:.2f}", {name: [round(t, 2) for t in f] for name, f in taken.items()})
        spark.stop()
    print("load average", *os.getloadavg())


if __name__ == "__main__":
    main()
