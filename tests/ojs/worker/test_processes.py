"""Handlers in processes: what they tell, how they end, and how they die."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ojs import cpu_program
from tests.ojs.eye import Eye, until
from waybill.ojs import Call, Handler, JobContext, JobInfo, Jobs, Retry, Worker, current_job
from waybill.ojs.middleware import JobLogFilter

ONCE = Retry(max_attempts=1)


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


@pytest.fixture
def register(jobs: Jobs, queue_name: str) -> Callable[..., Handler[..., Any]]:
    def register(function: Callable[..., Any], **options: Any) -> Handler[..., Any]:
        name = f"cpu.{function.__name__}"
        made: Handler[..., Any] = jobs.handler(name, queue=queue_name, process=True, **({"retry": ONCE} | options))(
            function
        )
        return made

    return register


async def ended(jobs: Jobs, job_id: str, queue: str) -> JobInfo:
    while (job := await jobs.info(job_id, queue)) is None or job.ended_at is None:
        await asyncio.sleep(0.02)
    return job


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_result_progress_and_logs_come_back(
    jobs: Jobs, queue_name: str, register: Callable[..., Handler[..., Any]], caplog: pytest.LogCaptureFixture
) -> None:
    square = register(cpu_program.square)
    caplog.handler.addFilter(JobLogFilter())
    async with Worker(jobs, coordinator=True):
        first, second = [await ended(jobs, (await square.push(number)).id, queue_name) for number in (5, 6)]
    assert isinstance(first.result, dict)
    assert isinstance(second.result, dict)
    assert (first.result["square"], second.result["square"]) == (25, 36)
    assert first.result["pid"] != os.getpid()
    assert first.result["pid"] == second.result["pid"], "a process serves one job after another"
    assert str(first.result["traceparent"]).startswith("00-")
    assert (first.progress, first.progress_message) == (1.0, "half")
    records: list[Any] = [record for record in caplog.records if record.name == "cpu.program"]
    assert [(record.getMessage(), record.job_id) for record in records] == [
        ("squaring 5", first.id), ("squaring 6", second.id),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("how", "kind", "code", "text"),
    [
        ("value", "ValueError", "HANDLER_ERROR", "no such value"),
        ("picky", "Picky", "HANDLER_ERROR", "1 and 2"),
        ("final", "cpu.final", "HANDLER_ERROR", "never again"),
        ("exit", "SystemExit", "HANDLER_ERROR", "3"),
        ("killed", "WorkerLost", "HANDLER_PANIC", "the process of the job was killed by SIGKILL"),
        ("segfault", "WorkerLost", "HANDLER_PANIC", "the process of the job was killed by SIGSEGV"),
        ("gone", "WorkerLost", "HANDLER_PANIC", "the process of the job has exited with code 7"),
    ],
)
async def test_an_error_and_a_death_are_failures_of_the_attempt_alone(
    waybill_uri: str, queue_name: str, how: str, kind: str, code: str, text: str
) -> None:
    async with Jobs(waybill_uri) as jobs:
        fail = jobs.handler("cpu.fail", queue=queue_name, process=True, retry=ONCE)(cpu_program.fail)
        square = jobs.handler("cpu.square", queue=queue_name, process=True)(cpu_program.square)
        async with Worker(jobs, coordinator=True, concurrency=1) as worker:
            job = await ended(jobs, (await fail.push(how)).id, queue_name)
            assert job.error is not None
            assert (job.state, job.attempt, job.error["type"], job.error["code"]) == ("discarded", 1, kind, code)
            assert job.error["message"] == text
            if code == "HANDLER_ERROR":
                assert "cpu_program.py" in str(job.error["stack_trace"])
            assert (await ended(jobs, (await square.push(2)).id, queue_name)).state == "completed"
            assert worker.counts["failed"] == 1


async def test_a_process_that_was_killed_is_an_attempt_and_the_next_one_goes_on(
    jobs: Jobs, queue_name: str, register: Callable[..., Handler[..., Any]]
) -> None:
    resume = register(cpu_program.resume, retry=Retry(jitter=False))
    async with Worker(jobs, coordinator=True):
        job = await ended(jobs, (await resume.push("x")).id, queue_name)
    assert (job.state, job.attempt, job.result) == ("completed", 2, {"page": 1})


async def test_cancelling_ends_the_code_in_the_process(
    jobs: Jobs, queue_name: str, register: Callable[..., Handler[..., Any]], tmp_path: Path
) -> None:
    handler = register(cpu_program.spin_and_tidy)
    path = tmp_path / "pid"
    async with Worker(jobs, coordinator=True):
        pushed = await handler.push(str(path))
        await until(lambda: path.exists() and bool(path.read_text(encoding="ascii")))
        await jobs.cancel(pushed.id, queue_name)
        assert (await ended(jobs, pushed.id, queue_name)).state == "cancelled"
        assert path.with_name("pid.tidied").exists()
        assert not is_gone(int(path.read_text(encoding="ascii"))), "it is there for the next job"


async def test_a_middleware_s_own_limit_ends_the_code_in_the_process(
    waybill_uri: str, queue_name: str, tmp_path: Path
) -> None:
    async def impatient(job: JobContext, call: Call) -> object:
        while not path.exists():
            running = asyncio.ensure_future(call(job))
            await until(path.exists)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        raise TimeoutError("too long for me")

    path = tmp_path / "pid"
    async with Jobs(waybill_uri) as jobs:
        handler = jobs.handler("cpu.spin", queue=queue_name, process=True, retry=ONCE)(cpu_program.spin_and_tidy)
        async with Worker(jobs, middleware=[impatient]) as worker:
            await handler.push(str(path))
            await until(lambda: worker.counts["discarded"] == 1)
            await until(path.with_name("pid.tidied").exists)


@pytest.mark.parametrize("function", [cpu_program.spin, cpu_program.stubborn])
async def test_a_time_limit_ends_the_process_if_need_be(
    jobs: Jobs,
    queue_name: str,
    register: Callable[..., Handler[..., Any]],
    tmp_path: Path,
    function: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("waybill.ojs.worker.process_pool.KILL_SECONDS", 0.2)
    handler = register(function, timeout=0.5)
    path = tmp_path / "pid"
    async with Worker(jobs, coordinator=True) as worker:
        job = await ended(jobs, (await handler.push(str(path))).id, queue_name)
        assert job.error is not None
        assert (job.state, job.error["type"]) == ("discarded", "timeout")
        await until(lambda: worker.running_count == 0)
        if function is cpu_program.stubborn and path.exists():
            await until(lambda: is_gone(int(path.read_text(encoding="ascii"))))


async def test_no_more_processes_than_asked_for_and_other_jobs_go_on(
    jobs: Jobs, eye: Eye, queue_name: str, register: Callable[..., Handler[..., Any]], tmp_path: Path
) -> None:
    wait = register(cpu_program.sleep_until)
    done = []

    @jobs.handler("cpu.quick", queue=queue_name)
    async def quick() -> None:
        done.append(current_job().id)

    path = tmp_path / "go"
    async with Worker(jobs, concurrency=4, processes=1) as worker:
        await wait.push(str(path))
        await until(lambda: path.with_name("go.begun").exists())
        path.with_name("go.begun").unlink()
        await wait.push(str(path))
        await quick.push()
        await until(lambda: len(done) == 1)
        assert worker.running_count == 1
        assert worker.held_count == 2
        assert not path.with_name("go.begun").exists()
        path.touch()
        await until(lambda: worker.counts["completed"] == 3)
    assert await eye.count(f"ojs.queue.{queue_name}") == 0


async def test_a_shutdown_waits_for_processes_and_then_ends_them(
    jobs: Jobs, eye: Eye, queue_name: str, register: Callable[..., Handler[..., Any]], tmp_path: Path
) -> None:
    wait = register(cpu_program.sleep_until)
    spin = register(cpu_program.spin, retry=Retry(jitter=False))
    path = tmp_path / "go"
    async with Worker(jobs) as worker:
        await wait.push(str(path))
        await until(lambda: path.with_name("go.begun").exists())
        asyncio.get_running_loop().call_later(0.2, path.touch)
    assert worker.counts["completed"] == 1
    async with Worker(jobs, grace_period=0.1) as worker:
        await spin.push(str(tmp_path / "pid"))
        await until(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text(encoding="ascii")))
    assert worker.counts["retried"] == 1
    assert not worker.has_stuck_handlers
    await until(lambda: is_gone(int((tmp_path / "pid").read_text(encoding="ascii"))))
    assert (await eye.wait_for(f"ojs.queue.{queue_name}")).json()["error"]["type"] == "ShutdownError"


async def test_a_process_makes_its_own_resources(waybill_uri: str, queue_name: str) -> None:
    async with Jobs(waybill_uri) as jobs:
        own = jobs.handler("cpu.own", queue=queue_name, process=True)(cpu_program.with_tools)
        foreign = jobs.handler("cpu.foreign", queue=queue_name, process=True, retry=ONCE)(cpu_program.with_loop)
        async with Worker(jobs, coordinator=True):
            assert (await ended(jobs, (await own.push()).id, queue_name)).result is True
            job = await ended(jobs, (await foreign.push()).id, queue_name)
    assert job.error is not None
    assert "is asynchronous" in str(job.error["message"])


async def test_a_result_that_cannot_be_pickled_does_not_undo_the_job(waybill_uri: str, queue_name: str) -> None:
    async with Jobs(waybill_uri) as jobs:
        odd = jobs.handler("cpu.odd", queue=queue_name, process=True)(cpu_program.odd)
        async with Worker(jobs, coordinator=True):
            job = await ended(jobs, (await odd.push()).id, queue_name)
    assert (job.state, job.result) == ("completed", None)


def test_a_function_that_no_process_could_find_is_refused() -> None:
    jobs = Jobs("amqp://localhost")

    def inside() -> None: ...

    async def asynchronous() -> None: ...

    for function in (inside, asynchronous):
        with pytest.raises(TypeError, match="top level of a module"):
            jobs.handler("cpu.refused", process=True)(function)


async def test_a_process_that_died_idle_is_replaced_at_no_cost(
    waybill_uri: str, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with Jobs(waybill_uri) as jobs:
        square = jobs.handler("cpu.square", queue=queue_name, process=True)(cpu_program.square)
        async with Worker(jobs, coordinator=True):
            first = await ended(jobs, (await square.push(1)).id, queue_name)
            assert isinstance(first.result, dict)
            os.kill(int(str(first.result["pid"])), signal.SIGKILL)
            second = await ended(jobs, (await square.push(2)).id, queue_name)
    assert (second.state, second.attempt) == ("completed", 1)
