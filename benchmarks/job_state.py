"""How many job events a second a coordinator folds into PostgreSQL, and what takes the time.

    python -m benchmarks.job_state [--jobs 100000] [--known 0] [--sqlite] [--partitions 2]

Starts a PostgreSQL of its own on loopback, with fsync on and the settings that Debian ships. Makes the events of that
many jobs, as an event stream has them: those of many jobs mixed, some hundreds in one message. Folds them as a
coordinator does, in the same pieces, and prints events a second, and the CPU of the coordinator and of PostgreSQL for
1,000 events. Wall time depends on what else the machine does; CPU does not.

With `--partitions`, the events are then divided as an event stream in partitions divides them, and folded by one
process, and into another database by as many processes as there are partitions.
"""

from __future__ import annotations

import heapq
import multiprocessing
import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from tests import postgresql
from waybill.ojs.coordinator.event_fold import Message, fold_messages
from waybill.ojs.coordinator.event_reader import PREFETCH
from waybill.ojs.coordinator.open_store import open_job_store
from waybill.ojs.spec.event_partitions import partition_of_job
from waybill.ojs.spec.timestamps import format_timestamp

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

EVENTS_PER_MESSAGE: Final = 200
JOBS_PER_SECOND: Final = 1250.0
TYPES: Final = 40
QUEUES: Final = 20
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_TRACE: Final = "\n".join(f"/srv/app/module_{number}.py:{number} in call: return call()" for number in range(20))
_encode = msgspec.json.Encoder().encode


def job_id_of(moment: datetime, number: int) -> str:
    stamp = int(moment.timestamp() * 1000)
    return f"{stamp >> 16:08x}-{stamp & 0xFFFF:04x}-7{number & 0xFFF:03x}-8000-{number:012x}"


def life_of(number: int, begin: datetime, chance: random.Random) -> list[tuple[datetime, bytes]]:
    """The events of one job with their times: four on average, one job in twenty fails once."""
    job_id, kind = job_id_of(begin, number), f"bench.type{chance.randrange(TYPES)}.run"
    queue = f"queue-{chance.randrange(QUEUES)}"
    found: list[tuple[datetime, bytes]] = []

    def add(name: str, seconds: float, **data: object) -> datetime:
        at = begin + timedelta(seconds=seconds)
        event = {
            "specversion": "1.0",
            "id": f"evt_{job_id}_{len(found)}",
            "type": f"job.{name}",
            "source": "ojs://bench/workers/1",
            "time": format_timestamp(at),
            "subject": job_id,
            "data": {"job_type": kind, "queue": queue, **data},
        }
        found.append((at, _encode(event)))
        return at

    arguments = [{"to": f"user{number}@example.com", "subject": "Your order", "order": number, "lines": [1, 2, 3]}]
    add("enqueued", 0, priority=0, job={"id": job_id, "type": kind, "queue": queue, "args": arguments, "meta": {}})
    waited = chance.expovariate(0.5)
    add("started", waited, attempt=1, worker_id=f"worker-{number % 50}")
    if number % 20 == 0:
        error = {"type": "ConnectionError", "message": f"server {number % 7} does not answer", "code": "handler_error"}
        add("failed", waited + 1, attempt=1, error={**error, "stack_trace": _TRACE})
        add("retrying", waited + 1, attempt=1, max_attempts=3, next_retry_at=format_timestamp(begin))
        add("started", waited + 3, attempt=2, worker_id=f"worker-{number % 50}")
        waited += 3
    add("progress", waited + 0.5, attempt=1, progress_percent=50)
    add("completed", waited + 1, attempt=2 - (number % 20 != 0), result={"ok": True}, duration_ms=900)
    return found


def messages_of(jobs: int, begin: datetime, seed: int = 1) -> Iterator[Message]:
    """The messages of an event stream, in the order of time; jobs begin at JOBS_PER_SECOND."""
    chance = random.Random(seed)
    waiting: list[tuple[datetime, int, bytes]] = []
    made = 0

    def events() -> Iterator[bytes]:
        nonlocal made
        for number in range(jobs):
            at = begin + timedelta(seconds=number / JOBS_PER_SECOND)
            for moment, text in life_of(number, at, chance):
                made += 1
                heapq.heappush(waiting, (moment, made, text))
            while waiting and waiting[0][0] <= at:
                yield heapq.heappop(waiting)[2]
        while waiting:
            yield heapq.heappop(waiting)[2]

    stream = events()
    offset = 0
    while batch := list(islice(stream, EVENTS_PER_MESSAGE)):
        yield offset, b"[" + b",".join(batch) + b"]", "guest"
        offset += 1


def divided(messages: list[Message], count: int) -> dict[int, list[Message]]:
    """The messages of each partition: each has the events of one message that belong there."""
    found: defaultdict[int, list[Message]] = defaultdict(list)
    for _, body, user in messages:
        parts: defaultdict[int, list[msgspec.Raw]] = defaultdict(list)
        for event in msgspec.json.decode(body, type=list[msgspec.Raw]):
            parts[partition_of_job(msgspec.json.decode(event)["subject"], count)].append(event)
        for number, events in parts.items():
            found[number].append((len(found[number]), _encode(events), user))
    return found


def measure(database: str, messages: list[Message], others: Callable[[], float]) -> dict[str, float]:
    """Fold messages in the pieces in which a coordinator takes them; seconds of wall and of CPU."""
    with open_job_store(database) as store:
        own, other, began = time.process_time(), others(), time.perf_counter()
        for start in range(0, len(messages), PREFETCH // 2):
            fold_messages(store, messages[start : start + PREFETCH // 2])
        return {
            "wall": time.perf_counter() - began,
            "coordinator": time.process_time() - own,
            "database": others() - other,
        }


def fold_share(
    database: str, share: dict[int, list[Message]], count: int, gate: Barrier, results: Queue[tuple[float, float]]
) -> None:
    """Fold some partitions in turns, as one coordinator does: the program of each process."""
    with open_job_store(database, None, count) as store:
        gate.wait()
        own, began = time.process_time(), time.perf_counter()
        step = PREFETCH // 2
        for start in range(0, max(map(len, share.values())), step):
            for number, messages in share.items():
                if piece := messages[start : start + step]:
                    fold_messages(store, piece, number)
        results.put((time.perf_counter() - began, time.process_time() - own))


def measure_shared(
    database: str, parts: dict[int, list[Message]], processes: int, others: Callable[[], float]
) -> tuple[dict[str, float], list[float]]:
    """Fold all partitions with some processes; what `measure` returns, and the CPU seconds of each process."""
    with open_job_store(database, None, len(parts)):
        pass
    context = multiprocessing.get_context("spawn")
    gate, results = context.Barrier(processes + 1), context.Queue()
    running = []
    for place in range(processes):
        share = {number: messages for number, messages in parts.items() if number % processes == place}
        running.append(context.Process(target=fold_share, args=(database, share, len(parts), gate, results)))
        running[-1].start()
    gate.wait()
    other = others()
    found = [results.get() for _ in running]
    for one in running:
        one.join()
    cpu = [own for _, own in found]
    total = {"wall": max(wall for wall, _ in found), "coordinator": sum(cpu), "database": others() - other}
    return total, cpu


def cpu_of(server: postgresql.Server) -> float:
    """CPU seconds of a server, and of those of its processes that have ended."""
    total = 0.0
    for pid in server.pids():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(int(fields[place]) for place in ((11, 12, 13, 14) if pid == server.pids()[0] else (11, 12)))
    return total / _TICKS


def show(name: str, events: int, found: dict[str, float]) -> None:
    each = {key: found[key] / events * 1e6 for key in ("coordinator", "database")}
    click.echo(
        f"{name}: {events / found['wall']:,.0f} events/s; CPU for 1,000 events: coordinator"
        f" {each['coordinator']:.0f} ms, database {each['database']:.0f} ms"
    )


@click.command()
@click.option("--jobs", default=100_000, show_default=True, help="Jobs whose events are folded.")
@click.option("--known", default=0, show_default=True, help="Jobs in the database before.")
@click.option("--sqlite", is_flag=True, help="A SQLite file instead.")
@click.option("--partitions", default=1, show_default=True, help="Fold as many with 1 and N processes.")
def main(jobs: int, known: int, partitions: int, *, sqlite: bool) -> None:
    now = datetime.now(UTC)
    before = list(messages_of(known, now - timedelta(days=2), seed=2))
    begin = now - timedelta(hours=1)
    messages = [(offset + len(before), body, user) for offset, body, user in messages_of(jobs, begin)]
    events = sum(body.count(b'"specversion"') for _, body, _ in messages)
    with ExitStack() as stack:
        if sqlite:
            database, others = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "jobs.db"), lambda: 0.0
        else:
            directory = stack.enter_context(postgresql.directory_for_servers())
            server = postgresql.Server(directory).create().start(is_durable=True)
            stack.callback(server.stop)
            database, others = server.create_database("jobs"), lambda: cpu_of(server)
        if before:
            measure(database, before, others)
        show(f"{jobs:,} jobs", events, measure(database, messages, others))
        if partitions > 1 and not sqlite:
            parts = divided(messages, partitions)
            for processes in (1, partitions):
                found, cpu = measure_shared(server.create_database(f"shared{processes}"), parts, processes, others)
                show(f"{jobs:,} jobs, {partitions} partitions, {processes} processes", events, found)
                click.echo("CPU seconds of each process: " + ", ".join(f"{one:.1f}" for one in cpu))


if __name__ == "__main__":
    main()
