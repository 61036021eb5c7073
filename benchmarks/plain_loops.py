"""The work of the pipeline in plain Python loops with pika, one message at a time.

python -m benchmarks.plain_loops URI events STREAM COUNT DIRECTORY      prints seconds
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import pika
import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline.reference_fold import fold

ROWS_PER_FILE = 100_000
COLUMNS = ("id", "type", "source", "subject", "time")
DATA = ("job_type", "queue", "worker_id", "attempt", "duration_ms")


def messages(uri: str, stream: str) -> Iterator[tuple[int, bytes]]:
    """Offset and body of the messages of a stream, without end.

    Does not use `channel.consume` or close: both requeue what was not handed out, which a stream refuses. The
    connection ends with the process.
    """
    connection = pika.BlockingConnection(pika.URLParameters(uri))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=2000)
    arrived: list[tuple[int, int, bytes]] = []
    channel.basic_consume(
        stream,
        lambda _channel, method, properties, body: arrived.append(
            (method.delivery_tag, properties.headers["x-stream-offset"], body)
        ),
        arguments={"x-stream-offset": "first"},
    )
    while True:
        connection.process_data_events(time_limit=1)
        taken, arrived[:] = list(arrived), []
        for tag, offset, body in taken:
            yield offset, body
            channel.basic_ack(tag)


def events(uri: str, stream: str) -> Iterator[dict[str, object]]:
    """The events of a stream."""
    for _, body in messages(uri, stream):
        found = json.loads(body)
        yield from found if isinstance(found, list) else [found]


def write(rows: Iterable[dict[str, object]], count: int, directory: Path) -> None:
    """The first `count` rows as Parquet files."""
    directory.mkdir(parents=True, exist_ok=True)
    waiting: list[dict[str, object]] = []
    for number, row in enumerate(islice(rows, count), start=1):
        waiting.append(row)
        if len(waiting) == ROWS_PER_FILE or number == count:
            pq.write_table(pa.Table.from_pylist(waiting), directory / f"{number}.parquet", compression="zstd")
            waiting = []


def messages_to_parquet(uri: str, stream: str, count: int, directory: Path) -> None:
    """Messages of a stream as they are."""
    write(({"offset": offset, "body": body} for offset, body in messages(uri, stream)), count, directory)


def events_to_parquet(uri: str, stream: str, count: int, directory: Path) -> None:
    """Events of a stream with typed columns."""
    write(map(event_row, events(uri, stream)), count, directory)


def event_row(event: dict[str, object]) -> dict[str, object]:
    data = event["data"]
    row = {name: event.get(name) for name in COLUMNS}
    if isinstance(data, dict):
        row |= {name: data.get(name) for name in DATA}
    return row | {"event": json.dumps(event)}


def push(uri: str, queue: str, count: int, _: Path) -> None:
    """Jobs with the confirms of pika's blocking channel: each publish waits."""
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
    fold(islice(events(uri, stream), count))


LOOPS: dict[str, Callable[[str, str, int, Path], None]] = {
    "messages": messages_to_parquet,
    "events": events_to_parquet,
    "push": push,
    "silver": to_silver,
}

if __name__ == "__main__":
    uri, what, name, number, place = sys.argv[1:]
    began = time.perf_counter()
    LOOPS[what](uri, name, int(number), Path(place))
    print(time.perf_counter() - began)
