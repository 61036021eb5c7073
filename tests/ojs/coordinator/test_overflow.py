"""Jobs in memory for which memory has no room: they are in a file, and nobody can tell."""

import random
import resource
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ojs.coordinator.test_job_store import event
from waybill.ojs.coordinator import overflow
from waybill.ojs.coordinator.job_store import JobFilter, JobStore
from waybill.ojs.coordinator.memory_job_store import MemoryJobStore
from waybill.ojs.coordinator.overflow import IN_FILE, LARGE_BYTES, Overflow
from waybill.ojs.errors import DatabaseUnusable
from waybill.ojs.spec.events import ReceivedEvent

KINDS = ["enqueued", "started", "progress", "retrying", "completed", "discarded", "cancelled", "deleted", "reserved"]
QUEUES = ["q", "r"]


def envelope(job_id: str, argument: str) -> dict[str, object]:
    return {"specversion": "1.0", "id": job_id, "type": "a.b", "queue": "q", "args": [argument]}


def random_event(chance: random.Random, second: int) -> ReceivedEvent:
    kind, job_id = chance.choice(KINDS), f"job{chance.randint(0, 40)}"
    data: dict[str, object] = {"queue": chance.choice(QUEUES), "attempt": chance.randint(1, 3)}
    match kind:
        case "enqueued":
            data["job"] = envelope(job_id, "x" * chance.choice([1, 500, LARGE_BYTES]))
        case "completed":
            data["result"] = "y" * chance.choice([1, 500, LARGE_BYTES])
        case "discarded":
            data["last_error"] = {"type": chance.choice(["A", "B"]), "message": "no"}
        case "reserved":
            data |= {"unique_key": chance.choice("kl"), "states": ["available", "completed"]}
    return event(f"job.{kind}", job_id, second, **data)


def all_of(store: JobStore) -> list[object]:
    reads: list[Callable[[], object]] = [
        lambda: [store.detail(f"job{number}") for number in range(41)],
        lambda: [store.page(JobFilter(queue), "", 5) for queue in (None, *QUEUES)],
        lambda: [store.newest(queue, None, 10) for queue in QUEUES],
        lambda: [store.times(queue, 10) for queue in QUEUES],
        lambda: store.missing([f"job{number}" for number in range(50)]),
        store.counts,
        store.held,
        lambda: store.running(10),
        lambda: store.failures(10),
    ]
    return [read() for read in reads]


@pytest.mark.parametrize("seed", range(8))
def test_a_store_without_room_tells_the_same(seed: int) -> None:
    chance = random.Random(seed)
    with MemoryJobStore(20) as usual, MemoryJobStore(20, room=0) as none, MemoryJobStore(20, room=5000) as little:
        for offset in range(150):
            found = [random_event(chance, offset % 60) for _ in range(chance.randint(1, 5))]
            verdicts = [store.apply([(offset, found)]) for store in (usual, none, little)]
            assert verdicts[0] == verdicts[1] == verdicts[2]
            if offset % 10 == 0:
                assert all_of(usual) == all_of(none) == all_of(little)
        assert all_of(usual) == all_of(none) == all_of(little)


def test_many_large_jobs_take_little_memory() -> None:
    args, result = "x" * 100_000, "y" * 100_000
    tracemalloc.start()
    try:
        with MemoryJobStore() as store:
            for number in range(300):
                pushed = event("job.enqueued", f"j{number}", 1, job=envelope(f"j{number}", args))
                ended = event("job.completed", f"k{number}", 2, attempt=1, result=result)
                store.apply([(number, [pushed, ended])])
            used, peak = tracemalloc.get_traced_memory()
            last = store.detail("j299"), store.get("k0")
    finally:
        tracemalloc.stop()
    assert last[0] is not None
    assert last[1] is not None
    assert (last[0].envelope, last[1].result) == (envelope("j299", args), result)
    assert used < 1_000_000
    assert peak < 3_000_000


def test_what_is_dropped_makes_room() -> None:
    texts = Overflow(room=1000)
    held = {key: texts.keep(key, key.encode() * 400) for key in "abc"}
    assert [one == IN_FILE for one in held.values()] == [False, False, True]
    for key, one in held.items():
        assert texts.text(key, one) == key.encode() * 400
        texts.drop(key, one)
    assert texts.keep("d", b"d" * 1000) == b"d" * 1000
    assert texts.keep("c", b"c" * 400) == IN_FILE
    assert texts.keep("f", b"f" * 400, is_needed_soon=True) == b"f" * 400
    assert texts.keep("g", b"g" * 400, is_needed_soon=True) == IN_FILE
    texts.close()
    assert texts.keep("e", b"e" * 1000) == b"e" * 1000


@pytest.mark.plain_source
def test_without_a_file_the_jobs_stay_in_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open database file")

    texts = Overflow(room=0)
    with monkeypatch.context() as patch:
        patch.setattr(overflow, "_new_file", refuse)
        held = [texts.keep(key, b"text") for key in "ab"]
    assert held == [b"text", b"text"]
    assert texts.text("a", held[0]) == b"text"
    [line] = caplog.messages
    assert "stay in memory: unable to open database file" in line
    assert texts.keep("c", b"text") == IN_FILE, "it tries again"


@pytest.mark.plain_source
def test_a_full_disk_loses_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    new_file = overflow._new_file

    def small() -> sqlite3.Connection:
        file = new_file()
        file.execute("PRAGMA max_page_count = 20")
        return file

    monkeypatch.setattr(overflow, "_new_file", small)
    texts = Overflow(room=0)
    held = {f"k{number}": texts.keep(f"k{number}", str(number).encode() * 20_000) for number in range(10)}
    assert {one == IN_FILE for one in held.values()} == {True, False}
    assert all(texts.text(key, one) == key[1:].encode() * 20_000 for key, one in held.items())
    assert len([line for line in caplog.messages if "full" in line]) == 1
    for key, one in held.items():
        texts.drop(key, one)
    assert texts.keep("k", b"again") == IN_FILE


@pytest.mark.plain_source
def test_a_file_that_cannot_be_read_is_an_error_that_names_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda _, **options: connect(path, **options))
    monkeypatch.setattr(overflow, "CACHE_KIB", 16)
    with MemoryJobStore(room=0) as store:
        store.apply(
            [
                (
                    0,
                    [
                        event("job.enqueued", f"j{number}", 1, job=envelope(f"j{number}", "x" * 9000))
                        for number in range(50)
                    ],
                )
            ]
        )
        path.write_bytes(b"damage" * 200_000)
        with pytest.raises(DatabaseUnusable, match="Restart this process: it rebuilds"):
            store.detail("j1")


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file grows beyond 2 MB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
def test_what_is_in_the_file_can_be_read_while_the_disk_is_full() -> None:
    texts = Overflow(room=0)
    held = {f"k{number}": texts.keep(f"k{number}", str(number).encode() * 20_000) for number in range(400)}
    assert {one == IN_FILE for one in held.values()} == {True, False}
    for key, one in held.items():
        assert texts.text(key, one) == key[1:].encode() * 20_000
    texts.close()


@pytest.mark.usefixtures("full_disk")
def test_while_the_disk_is_full_events_wait_instead_of_filling_the_memory() -> None:
    text = "x" * 1_000_000
    with MemoryJobStore(room=10_000_000) as store:
        pushed = 0

        def push(count: int) -> None:
            nonlocal pushed
            for number in range(pushed, pushed + count):
                store.apply([(number, [event("job.enqueued", f"j{number}", 1, job=envelope(f"j{number}", text))])])
                pushed += 1

        with pytest.raises(DatabaseUnusable, match="Make room in its directory"):
            push(60)
        assert 10 <= pushed < 15
        assert store.is_at_fault(DatabaseUnusable())
        assert store.detail("j3") is not None
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[1], before[1]))
        push(1)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert store.counts() == {("q", "available"): pushed}
