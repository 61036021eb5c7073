"""The work of the pipeline as a program without it would do it: plain Python loops with pika, one message at a time.

python -m benchmarks.plain_loops URI parquet STREAM COUNT DIRECTORY      prints seconds
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pika
import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline.reference_fold import fold

ROWS_PER_FILE = 100_000
COLUMNS = ("id", "type", "source", "subject", "time")
DATA = ("job_type", "queue", "worker_id", "attempt", "duration_ms")


def events(uri: str, stream: str, count: int) -> Iterator[dict[str, object]]:
    """The first `count` events of a stream.

    Neither `channel.consume` nor closing: they give back what was not handed out, and a stream takes nothing back. The
    connection ends with the process.
    """
    connection = pika.BlockingConnection(pika.URLParameters(uri))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=2000)
    arrived: list[tuple[int, bytes]] = []
    channel.basic_consume(
        stream,
        lambda _channel, method, _properties, body: arrived.append((method.delivery_tag, body)),
        arguments={"x-stream-offset": "first"},
    )
    seen = 0
    while seen < count:
        connection.process_data_events(time_limit=1)
        messages, arrived[:] = list(arrived), []
        for tag, body in messages:
            found = json.loads(body)
            for event in found if isinstance(found, list) else [found]:
                yield event
                seen += 1
            channel.basic_ack(tag)


def to_parquet(uri: str, stream: str, count: int, directory: Path) -> None:
    """Events of a stream as Parquet files."""
    directory.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    for number, event in enumerate(islice(events(uri, stream, count), count), start=1):
        data = event["data"]
        row = {name: event.get(name) for name in COLUMNS}
        if isinstance(data, dict):
            row |= {name: data.get(name) for name in DATA}
        rows.append(row | {"event": json.dumps(event)})
        if len(rows) == ROWS_PER_FILE or number == count:
            pq.write_table(pa.Table.from_pylist(rows), directory / f"{number}.parquet", compression="zstd")
            rows = []


def push(uri: str, queue: str, count: int, _: Path) -> None:
    """Jobs with confirms, as pika's blocking channel has them: each publish waits."""
    connection = pika.BlockingConnection(pika.URLParameters(uri))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for number in range(count):
        job = {"specversion": "1.0", "id": str(number), "type": "bench.push", "queue": "bench", "args": [number]}
        properties = pika.BasicProperties(delivery_mode=2, content_type="application/json", message_id=str(number))
        channel.basic_publish("", queue, json.dumps(job).encode(), properties, mandatory=True)
    connection.close()


def to_silver(uri: str, stream: str, count: int, _: Path) -> None:
    """Events of a stream folded to jobs and attempts, in a dict."""
    fold(events(uri, stream, count))


LOOPS: dict[str, Callable[[str, str, int, Path], None]] = {"parquet": to_parquet, "push": push, "silver": to_silver}

if __name__ == "__main__":
    uri, what, name, number, place = sys.argv[1:]
    began = time.perf_counter()
    LOOPS[what](uri, name, int(number), Path(place))
    print(time.perf_counter() - began)
