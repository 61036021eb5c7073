"""Whatever a job is made of, and whatever its handler does: it is settled once, and the next job runs.

Every worker here has one place. A delivery that stays unsettled, or a place that is not given back, would stop it.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.ojs.eye import Eye, until
from waybill.ojs import JobError, Jobs, Retry, Worker, current_job
from waybill.ojs.job_context import JobContext
from waybill.ojs.middleware import Call

QUICK = Retry(max_attempts=1)


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def job(fields: bytes) -> bytes:
    return b'{"specversion": "1.0", "id": "1", "type": "odd.known", "queue": "q", ' + fields + b"}"


BODIES = {
    "args nested 1500 deep": job(b'"args": ' + nested(1500)),
    "args nested 300 deep": job(b'"args": ' + nested(300)),
    "an unknown field nested 1500 deep": job(b'"args": [], "x": ' + nested(1500)),
    "objects nested 1500 deep": job(b'"args": [' + b'{"a": ' * 1500 + b"1" + b"}" * 1500 + b"]"),
    "an integer of 5000 digits": job(b'"args": [' + b"9" * 5000 + b"]"),
    "a million arrays": job(b'"args": [' + b"[]," * 1_000_000 + b"1]"),
    "a float beyond all floats": job(b'"args": [1e400]'),
    "NaN": job(b'"args": [NaN]'),
    "a lone surrogate": job(b'"args": ["\\ud800"]'),
    "no UTF-8": job(b'"args": ["\xff\xfe"]'),
    "nothing": b"",
    "a byte order mark": b"\xef\xbb\xbf" + job(b'"args": []'),
    "null": b"null",
    "an id of 300 characters": b'{"id": "' + b"i" * 300 + b'", "type": "odd.known", "args": []}',
    "a type of 300 characters": b'{"id": "1", "type": "' + b"t" * 300 + b'", "args": []}',
    "a deadline before its creation cannot be read": job(
        b'"args": [], "expires_at": "2020-01-01T00:00:00Z", "created_at": "nonsense"'
    ),
    "a deadline at the beginning of time": job(
        b'"args": [], "expires_at": "0001-01-01T00:00:00+23:59", "created_at": "9999-12-31T23:59:59-23:59"'
    ),
    "an id that no event's message has room for": (
        '{"id": "' + "\N{SNOWMAN}" * 200 + '", "type": "odd.unknown", "args": []}'
    ).encode(),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_a_body_that_is_no_job_becomes_a_dead_letter(jobs: Jobs, eye: Eye, queue_name: str, body: bytes) -> None:
    @jobs.handler("odd.known", queue=queue_name)
    async def known() -> None: ...

    async with Worker(jobs, concurrency=1) as worker:
        for _ in range(3):
            await eye.publish("ojs.exchange.direct", queue_name, body, type="odd.known", message_id="1")
        await known.push()
        await until(lambda: worker.counts["completed"] == 1 and worker.counts["discarded"] == 3)
        assert worker.is_consuming
        assert worker.held_count == 0
    assert await eye.count(f"ojs.queue.{queue_name}") == 0
    assert await eye.count(f"ojs.queue.dlx.{queue_name}") == 3


HEADERS: dict[str, dict[str, object]] = {
    "tables in place of texts": {"x-ojs-queue": {"a": 1}, "x-ojs-trace-id": {"b": [1]}, "x-ojs-tags": [1, None]},
    "a negative attempt": {"x-ojs-attempt": -5},
    "an attempt of 64 bits": {"x-ojs-attempt": 2**62},
    "a text for an attempt": {"x-ojs-attempt": "one", "x-ojs-max-attempts": "many"},
    "attempts without end": {"x-ojs-max-attempts": 2**62},
}
FIELDS: dict[str, bytes] = {
    "a negative time limit": b'"timeout": -5, "visibility_timeout_ms": -5',
    "a time limit of 400 digits": b'"timeout": ' + b"9" * 400 + b', "visibility_timeout": ' + b"9" * 400,
    "milliseconds of 400 digits": b'"timeout_ms": ' + b"9" * 400 + b', "visibility_timeout_ms": ' + b"9" * 400,
    "an attempt of 400 digits": b'"attempt": ' + b"9" * 400,
    "a priority of 400 digits": b'"priority": ' + b"9" * 400,
    "an id twice": b'"id": "2"',
    "a checkpoint that is none": b'"checkpoint": {"state": 1, "sequence": "x"}',
}


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS.keys())
async def test_odd_headers_spoil_neither_a_run_nor_a_retry(
    jobs: Jobs, eye: Eye, queue_name: str, headers: dict[str, object]
) -> None:
    @jobs.handler("odd.known", queue=queue_name)
    async def known(*, is_bad: bool = False) -> None: ...

    @jobs.handler("odd.fails", queue=queue_name)
    async def fails() -> None:
        raise ValueError

    async with Worker(jobs, concurrency=1) as worker:
        await eye.publish("ojs.exchange.direct", queue_name, job(b'"args": []'), headers=headers, priority=255)
        await until(lambda: worker.counts["completed"] == 1)
        body = b'{"specversion": "1.0", "id": "2", "type": "odd.fails", "args": [], "retry": {"max_attempts": 1}}'
        await eye.publish("ojs.exchange.direct", queue_name, body, headers=headers)
        await until(lambda: worker.counts["discarded"] == 1)
        await known.push()
        await until(lambda: worker.counts["completed"] == 2)


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS.keys())
async def test_odd_fields_are_moved_into_their_range(jobs: Jobs, eye: Eye, queue_name: str, fields: bytes) -> None:
    @jobs.handler("odd.known", queue=queue_name)
    async def known() -> None:
        await asyncio.sleep(0.3)

    async with Worker(jobs, concurrency=1) as worker:
        await eye.publish("ojs.exchange.direct", queue_name, job(b'"args": [], ' + fields))
        await known.push()
        await until(lambda: worker.counts["completed"] == 2)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Untouchable(Exception):
    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class OfNoName(Exception, metaclass=Nameless): ...


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def cyclic() -> list[object]:
    ring: list[object] = []
    ring.append(ring)
    return ring


def deep(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


def recursion() -> None:
    recursion()


def exit_program() -> None:
    sys.exit("a job")


def raising(error: BaseException) -> Callable[[], None]:
    def throw() -> None:
        raise error

    return throw


ENDINGS: dict[str, Callable[[], object]] = {
    "SystemExit": exit_program,
    "KeyboardInterrupt": raising(KeyboardInterrupt()),
    "CancelledError": raising(asyncio.CancelledError()),
    "GeneratorExit": raising(GeneratorExit()),
    "StopIteration": raising(StopIteration()),
    "StopAsyncIteration": raising(StopAsyncIteration()),
    "MemoryError": raising(MemoryError()),
    "RecursionError": recursion,
    "an exception without a text": raising(Unspeakable()),
    "an exception that cannot be looked at": raising(Untouchable()),
    "an exception whose class has no name": raising(OfNoName()),
    "a text that is no UTF-8": raising(OSError("\udcff\0")),
    "a text of a million characters": raising(OSError("x" * 1_000_000)),
    "details that are no JSON": raising(JobError("x", details={"a": object(), "b": cyclic()})),
}
RESULTS: dict[str, Callable[[], object]] = {
    "a cycle": cyclic,
    "a set of objects": lambda: {object()},
    "a value nested 900 deep": lambda: deep(900),
    "a value nested 100000 deep": lambda: deep(100_000),
    "an integer of 5000 digits": lambda: 10**5000,
    "a lone surrogate": lambda: "\ud800",
    "an object without a text": Unshowable,
    "NaN": lambda: float("nan"),
    "2 MiB": lambda: "x" * (2 << 20),
}


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def worker_log() -> logging.Logger:
    from waybill.ojs.worker import settlement

    return settlement._log


@pytest.fixture
def own_log(monkeypatch: pytest.MonkeyPatch) -> Records:
    """What a worker logs of settlements, kept from pytest's report: only UTF-8 goes from one process to another."""
    logger, records = logging.Logger("settlement"), Records()  # noqa: LOG001 - in no hierarchy
    logger.addHandler(records)
    monkeypatch.setattr("waybill.ojs.worker.settlement._log", logger)
    return records


@pytest.mark.parametrize("where", ["at once", "later", "thread"])
@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS.keys())
async def test_whatever_a_handler_raises_is_a_failure_of_its_job(
    waybill_uri: str, queue_name: str, own_log: Records, where: str, end: Callable[[], object]
) -> None:
    async with Jobs(waybill_uri) as jobs:
        define(jobs, queue_name, where, end)
        async with Worker(jobs, concurrency=1) as worker:
            await jobs.push_many([jobs.handlers["odd.ends"].job() for _ in range(3)])
            await jobs.handlers["odd.known"].push()
            await until(lambda: worker.counts["completed"] == 1 and worker.counts["discarded"] == 3)
            assert worker.is_consuming
    records = [record for record in own_log.records if "odd.ends" in record.getMessage()]
    assert [record.levelno for record in records] == [logging.ERROR] * 3
    assert all(record.exc_info for record in records)


@pytest.mark.parametrize("where", ["at once", "later", "thread"])
@pytest.mark.parametrize("end", RESULTS.values(), ids=RESULTS.keys())
async def test_a_result_that_cannot_be_written_is_left_out(
    waybill_uri: str, queue_name: str, where: str, end: Callable[[], object]
) -> None:
    async with Jobs(waybill_uri) as jobs:
        define(jobs, queue_name, where, end)
        async with Worker(jobs, concurrency=1) as worker:
            await jobs.push_many([jobs.handlers["odd.ends"].job() for _ in range(3)])
            await jobs.handlers["odd.known"].push()
            await until(lambda: worker.counts["completed"] == 4)
            assert worker.is_consuming


def define(jobs: Jobs, queue: str, where: str, end: Callable[[], object]) -> None:
    """Register a handler that ends in some way, and one that just works."""

    @jobs.handler("odd.known", queue=queue)
    async def known() -> None: ...

    async def at_once() -> object:
        return end()

    async def later() -> object:
        await asyncio.sleep(0)
        return end()

    def in_a_thread() -> object:
        return end()

    handler = {"at once": at_once, "later": later, "thread": in_a_thread}[where]
    jobs.handler("odd.ends", queue=queue, retry=QUICK)(handler)


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("is_after", [True, False])
@pytest.mark.parametrize(
    "error", [TypeError(), SystemExit(), RecursionError(), Unspeakable()], ids=lambda one: type(one).__name__
)
async def test_a_middleware_that_raises_fails_the_job(
    waybill_uri: str, queue_name: str, is_plain: bool, is_after: bool, error: BaseException
) -> None:
    async with Jobs(waybill_uri) as jobs:
        define(jobs, queue_name, "later", lambda: None)

        async def layer(job: JobContext, call: Call) -> object:
            if job.type == "odd.known":
                return await call(job)
            if is_after:
                await call(job)
            raise error

        def plain(job: JobContext, call: Call) -> Awaitable[object]:
            if job.type == "odd.known":
                return call(job)
            raise error

        async with Worker(jobs, concurrency=1, middleware=[plain if is_plain else layer]) as worker:
            await jobs.push_many([jobs.handlers["odd.ends"].job() for _ in range(3)])
            await jobs.handlers["odd.known"].push()
            await until(lambda: worker.counts["completed"] == 1 and worker.counts["discarded"] == 3)


class Refusing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            raise RecursionError("as a formatter does that shows an exception of many levels")


async def test_a_log_that_cannot_show_an_exception_changes_nothing_for_the_job(
    waybill_uri: str, queue_name: str, own_log: Records
) -> None:
    logging.Logger.addHandler(worker_log(), Refusing())
    async with Jobs(waybill_uri) as jobs:
        define(jobs, queue_name, "later", raising(ValueError()))
        async with Worker(jobs, concurrency=1) as worker:
            await jobs.push_many([jobs.handlers["odd.ends"].job() for _ in range(3)])
            await jobs.handlers["odd.known"].push()
            await until(lambda: worker.counts["completed"] == 1 and worker.counts["discarded"] == 3)
            assert worker.counts["failed"] == 3
            assert not worker.counters.skipped
    assert len(own_log.records) == 6


async def test_odd_progress_and_checkpoints_are_the_handlers_own_fault(waybill_uri: str, queue_name: str) -> None:
    async with Jobs(waybill_uri) as jobs:
        refused: list[str] = []

        @jobs.handler("odd.tells", queue=queue_name)
        async def tells() -> None:
            current_job().progress(0.5, message="\udcff\0" + "x" * 100_000)
            for state in (cyclic(), deep(900), object(), "\ud800", "x" * (2 << 20)):
                try:
                    current_job().checkpoint(state)
                except Exception as error:  # noqa: BLE001 - any of them
                    refused.append(type(error).__name__)
            current_job().checkpoint(deep(100))

        async with Worker(jobs, concurrency=1) as worker:
            await tells.push()
            await tells.push()
            await until(lambda: worker.counts["completed"] == 2)
        assert len(refused) == 10


@pytest.mark.plain_source
async def test_a_delivery_that_cannot_be_settled_becomes_a_dead_letter(
    jobs: Jobs, eye: Eye, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard itself: something fails that nobody has thought of."""

    @jobs.handler("odd.known", queue=queue_name)
    async def known() -> None: ...

    @jobs.handler("odd.fails", queue=queue_name)
    async def fails() -> None:
        raise ValueError

    async with Worker(jobs, concurrency=1) as worker:
        settlement = worker._settlement
        with monkeypatch.context() as patch:
            patch.setattr(settlement, "completed", raising(RecursionError()))
            patch.setattr(settlement, "_retry", lambda *_: raising(MemoryError())())
            await known.push()
            await fails.push()
            await until(lambda: worker.counts["discarded"] == 2)
        with monkeypatch.context() as patch:
            patch.setattr("waybill.ojs.worker.settlement.edit_envelope", lambda *_: raising(MemoryError())())
            await fails.push()
            await until(lambda: worker.counts["discarded"] == 3)
        await known.push()
        await until(lambda: worker.counts["completed"] == 1)
        assert worker.counters.skipped["job"] == 3
        assert worker.is_consuming
    assert await eye.count(f"ojs.queue.dlx.{queue_name}") == 3
    assert await eye.count(f"ojs.queue.{queue_name}") == 0


async def test_a_worker_that_holds_what_it_never_runs_is_not_ready(
    waybill_uri: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such fault is known; a probe must tell of one that is not."""
    monkeypatch.setattr("waybill.ojs.worker.consumers.STARVED_SECONDS", 0.1)
    async with Jobs(waybill_uri) as jobs:

        @jobs.handler("odd.known", queue=queue_name)
        async def known() -> None: ...

        async with Worker(jobs, concurrency=1) as worker:
            runner = worker._runner
            assert runner is not None
            await known.push()
            await until(lambda: worker.counts["completed"] == 1)
            assert worker.starvation is None
            with monkeypatch.context() as patch:
                patch.setattr(runner, "_begin", lambda *_: None)
                await known.push()
                await until(lambda: worker.starvation is not None)
            assert worker.is_consuming
