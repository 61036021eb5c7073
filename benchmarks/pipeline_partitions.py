"""Reads the same events from one stream and from a super stream of four partitions, on the cores of this machine.

    python -m benchmarks.pipeline_partitions --events 1000000

The broker, Spark and its Python workers share the cores.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.process_tree import cpu_seconds, cpu_seconds_of
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


@dataclass(frozen=True)
class Read:
    """What a read took: seconds, and seconds of CPU of the broker and of Spark with its Python workers."""

    seconds: float
    broker: float
    spark: float

    @property
    def cores(self) -> float:
        """How many cores were at work."""
        return (self.broker + self.spark) / self.seconds


def read(spark: SparkSession, broker: OwnBroker, name: str, form: str) -> Read:
    began, all_before, broker_before = time.monotonic(), cpu_seconds(), cpu_seconds_of(broker.pid)
    rows = spark.read.format(form).options(uri=broker.uri, superStream=name).load()
    rows.write.format("noop").mode("overwrite").save()
    seconds = time.monotonic() - began
    of_broker = cpu_seconds_of(broker.pid) - broker_before
    return Read(seconds, of_broker, cpu_seconds() - all_before - of_broker)


def show(form: str, events: int, one: list[Read], four: list[Read]) -> None:
    """Print the medians. With all cores busy, only less CPU could be quicker."""
    rates = []
    for name, found in (("one stream", one), ("four partitions", four)):
        middle = sorted(found, key=lambda run: run.seconds)[len(found) // 2]
        rates.append(events / middle.seconds)
        print(
            f"{form} of {name}: {rates[-1]:,.0f} rows/s on {middle.cores:.2f} cores, CPU for a million rows: broker "
            f"{middle.broker / events * 1e6:.2f} s, Spark and Python {middle.spark / events * 1e6:.2f} s"
        )
    print(f"{form}: ratio {rates[1] / rates[0]:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, OwnBroker(Path(directory) / "broker") as broker:
        fill(broker.uri, given.events)
        spark = local_session("partitions", cores=os.cpu_count() or 1, log_file=Path(directory) / "spark.log")
        for form in ("amqp", "ojs"):
            taken: dict[str, list[Read]] = {"single": [], "parts": []}
            # Both in turn, so that other work on the machine hits both. The first runs warm the session.
            for _ in range(given.runs + 1):
                for name, found in taken.items():
                    found.append(read(spark, broker, name, form))
            show(form, given.events, taken["single"][1:], taken["parts"][1:])
        spark.stop()
    print("load average", *os.getloadavg())


if __name__ == "__main__":
    main()
