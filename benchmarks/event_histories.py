"""Event histories of any length that keep the statistics of real workers' events.

Real workers do some thousands of jobs of different types, with failures, retries and dead letters, on a real broker.
Their events are grouped by job: the life of a job. A history is made by drawing whole lives at random, with
replacement, and giving each a new time and id. So outcomes, attempts, waits, run times, errors and sizes of events keep
their distributions and correlations.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.client import blocking
from waybill.ojs import Jobs, Retry, Worker
from waybill.pipeline.offsets import OffsetRange
from waybill.pipeline.options import parse_options
from waybill.pipeline.source import EVENT_STREAM
from waybill.pipeline.stream_log import StreamLog

JOBS: Final = 2_000
LIVES_PER_SECOND: Final = 40.0
HISTORY_BEGIN: Final = datetime(2026, 3, 1, tzinfo=UTC)
_EVENT_ID: Final = b"<event-id>"
_TIME: Final = b"<time>"
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Life:
    """The events of one job as JSON text, cut at each time; `times` are seconds from the push."""

    job_id: bytes
    events: tuple[tuple[bytes, ...], ...]
    times: tuple[tuple[float, ...], ...]


def record(uri: str, jobs: int = JOBS) -> list[Life]:
    """Run jobs with a real worker on the broker of `uri`; returns their lives."""
    # That some jobs fail is intended.
    logging.getLogger("waybill").setLevel(logging.CRITICAL)
    asyncio.run(_work(uri, jobs))
    log = StreamLog(parse_options({"uri": uri}, default_stream=EVENT_STREAM, streaming=False))
    span = OffsetRange(EVENT_STREAM, 0, log.end(EVENT_STREAM))
    by_job: dict[str, list[dict[str, object]]] = defaultdict(list)
    for message in log.read(span):
        found = _decode(message.body)
        for event in found if isinstance(found, list) else [found]:
            if str(event["type"]).startswith("job."):
                by_job[event["subject"]].append(event)
    with blocking.connect(uri) as connection:
        connection.channel().delete_queue(EVENT_STREAM)
    return [_life(job_id, events) for job_id, events in by_job.items()]


def generate(lives: list[Life], count: int, seed: int = 1, begin: datetime = HISTORY_BEGIN) -> Iterator[bytes]:
    """The JSON text of at least `count` events, life by life; pushes come LIVES_PER_SECOND a second, in random gaps."""
    chance = random.Random(seed)
    at = begin
    made = 0
    while made < count:
        life = chance.choice(lives)
        at += timedelta(seconds=chance.expovariate(LIVES_PER_SECOND))
        job_id = f"{chance.getrandbits(128):032x}".encode()
        for number, (pieces, times) in enumerate(zip(life.events, life.times, strict=True)):
            texts = [pieces[0]]
            for offset, piece in zip(times, pieces[1:], strict=True):
                moment = (at + timedelta(seconds=offset)).isoformat(timespec="milliseconds")
                texts += [moment.replace("+00:00", "Z").encode(), piece]
            text = b"".join(texts).replace(life.job_id, job_id)
            yield text.replace(_EVENT_ID, b"evt_%b_%d" % (job_id, number))
        made += len(life.events)


async def _work(uri: str, count: int) -> None:
    """Run `count` jobs of three types, of which some fail, some of these for good."""
    jobs = Jobs(uri)
    chance = random.Random(7)
    quick = Retry(max_attempts=3, initial_interval=timedelta(milliseconds=100))

    @jobs.handler("email.send", queue="email", retry=quick)
    async def send(number: int) -> None:
        await asyncio.sleep(chance.expovariate(500))
        if chance.random() < 0.05:
            raise ConnectionError(f"mail server {number % 4} does not answer")

    @jobs.handler("image.resize", queue="media", retry=quick)
    async def resize(number: int) -> None:
        await asyncio.sleep(chance.lognormvariate(-5, 0.8))
        if number % 50 == 0:
            raise ValueError(f"image {number} is damaged")

    @jobs.handler("report.make", queue="reports", retry=Retry(max_attempts=1))
    async def make(number: int) -> None:
        await asyncio.sleep(0.02)
        if chance.random() < 0.1:
            raise TimeoutError(f"report {number} took too long")

    handlers = chance.choices((send, resize, make), (6, 3, 1), k=count)
    async with jobs, Worker(jobs, concurrency=50) as worker:
        await jobs.push_many(handler.job(number) for number, handler in enumerate(handlers))
        while worker.counts["completed"] + worker.counts["discarded"] < count:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)


def _life(job_id: str, events: list[dict[str, object]]) -> Life:
    """Cut each event at each time."""
    events.sort(key=lambda event: str(event["time"]))
    start = datetime.fromisoformat(str(events[0]["time"]))
    texts, moments = [], []
    for event in events:
        times: list[float] = []
        marked = _marked({**event, "id": _EVENT_ID.decode()}, start, times)
        texts.append(tuple(_encode(marked).split(_TIME)))
        moments.append(tuple(times))
    return Life(job_id.encode(), tuple(texts), tuple(moments))


def _marked(value: object, start: datetime, times: list[float]) -> object:
    """`value` with a mark for each time in it, in the order of the text."""
    if isinstance(value, dict):
        return {name: _marked(one, start, times) for name, one in value.items()}
    if isinstance(value, str) and len(value) >= len("2026-01-01T00:00:00Z") and value[10:11] == "T":
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return value
        times.append((moment - start).total_seconds())
        return _TIME.decode()
    return value
