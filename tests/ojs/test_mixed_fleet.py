"""Programs of pika that know envelopes and tell no events, beside workers, clients and a coordinator of ours."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pika
import pytest

from tests.client.breaking import until
from tests.ojs.control.test_control import state_of
from tests.ojs.eye import Eye
from waybill.ojs import SPEC, WEB, Coordinator, JobInfo, Jobs, Names, Retry, Topology, Worker, current_job
from waybill.ojs.dead_letters import DeadLetters
from waybill.ojs.spec.identifiers import new_id

DIRECT = "ojs.exchange.direct"
QUICK = Retry(max_attempts=2, initial_interval=timedelta(milliseconds=1), jitter=False)


class Foreigner:
    """Pushes and does jobs with basic.publish, its confirm, basic.get and basic.ack, and nothing else."""

    def __init__(self, uri: str) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(uri))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()

    def push(self, queue: str, exchange: str = DIRECT, level: int | None = None, /, **fields: Any) -> str:
        """Publish an envelope; a field that is None is left out."""
        job = {"specversion": "1.0", "id": new_id(), "type": "foreign.job", "queue": queue, "args": []} | fields
        body = json.dumps({name: value for name, value in job.items() if value is not None})
        properties = pika.BasicProperties(delivery_mode=2, priority=level)
        self._channel.basic_publish(exchange, queue, body, properties, mandatory=True)
        return str(job["id"])

    def take(self, queue: str) -> dict[str, Any]:
        """Get a job, and acknowledge it without a word to anybody."""
        method, _, body = self._channel.basic_get(f"ojs.queue.{queue}")
        assert method is not None
        self._channel.basic_ack(method.delivery_tag)
        job: dict[str, Any] = json.loads(body)
        return job

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def foreigner(broker_uri: str) -> Iterator[Foreigner]:
    foreigner = Foreigner(broker_uri)
    yield foreigner
    foreigner.close()


@pytest.fixture
async def jobs(broker_uri: str, queue_name: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri, create_queues=True) as jobs, Coordinator(jobs, queues=[queue_name]):
        await (await jobs.broker_connection()).declarer.ensure_queue(queue_name)
        yield jobs


async def info(jobs: Jobs, job_id: str) -> JobInfo:
    found = await jobs.info(job_id)
    assert found is not None
    return found


async def test_a_foreign_job_has_a_full_record_once_a_worker_of_ours_has_it(
    jobs: Jobs, foreigner: Foreigner, queue_name: str
) -> None:
    go = asyncio.Event()

    @jobs.handler("foreign.job", queue=queue_name)
    async def run(number: int) -> int:
        await go.wait()
        return number + 1

    job_id = foreigner.push(queue_name, args=[1])
    async with Worker(jobs) as worker:
        active = await state_of(jobs, job_id, queue_name, "active")
        assert (active.type, active.queue, active.attempt) == ("foreign.job", queue_name, 1)
        assert (active.worker_id, active.certain) == (worker.id, True)
        assert active.started_at is not None
        # Nobody has told when it was enqueued.
        assert active.enqueued_at is None
        assert [one.id for one in await jobs.newest(queue_name)] == [job_id]
        go.set()
        done = await state_of(jobs, job_id, queue_name, "completed")
    assert (done.result, done.worker_id, done.certain) == (2, worker.id, True)
    assert await jobs.job(job_id).result(30) == 2


async def test_what_a_foreign_worker_takes_is_uncertain(jobs: Jobs, foreigner: Foreigner, queue_name: str) -> None:
    taken = await jobs.push("foreign.job", queue=queue_name)
    assert (await info(jobs, taken.id)).certain
    assert foreigner.take(queue_name)["id"] == taken.id
    assert await uncertain(jobs, taken.id) == "available"
    waiting = await jobs.push("foreign.job", queue=queue_name)
    # One of both is there, and AMQP does not say which.
    assert await uncertain(jobs, waiting.id) == "available"
    assert {(one.id, one.certain) for one in await jobs.newest(queue_name)} == {(taken.id, False), (waiting.id, False)}

    @jobs.handler("foreign.job", queue=queue_name)
    async def run() -> None: ...

    async with Worker(jobs):
        assert (await state_of(jobs, waiting.id, queue_name, "completed")).certain


async def test_what_a_foreign_worker_takes_after_a_delay_is_uncertain(
    jobs: Jobs, foreigner: Foreigner, eye: Eye, queue_name: str
) -> None:
    job = await jobs.push("foreign.job", queue=queue_name, delay=timedelta(seconds=3))
    waiting = await info(jobs, job.id)
    assert (waiting.state, waiting.certain) == ("scheduled", True)
    await eye.wait_for(f"ojs.queue.{queue_name}")
    assert await uncertain(jobs, job.id) == "scheduled"


async def uncertain(jobs: Jobs, job_id: str) -> str:
    """Return the state of a job, which is not certain: at once, for the broker has told what it has."""
    found = await info(jobs, job_id)
    assert not found.certain
    return found.state


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_foreign_priorities_meet_ours(broker_uri: str, queue_name: str, queue_type: Any) -> None:
    topology, order = Topology(prefix=f"{queue_type}.", queue_type=queue_type), list[int | None]()
    async with Jobs(broker_uri, topology=topology, create_queues=True) as jobs:

        @jobs.handler("foreign.job", queue=queue_name, retry=QUICK)
        async def run(number: int | None) -> None:
            if number == 255 and current_job().attempt == 1:
                raise ConnectionError
            order.append(number)

        await (await jobs.broker_connection()).declarer.ensure_queue(queue_name)
        foreigner = Foreigner(broker_uri)
        for number in (None, 4, 9, 255):
            # The field of the envelope is out of its range, and the property out of that of the queue.
            foreigner.push(queue_name, f"{topology.prefix}{DIRECT}", number, args=[number], priority=10**6)
        foreigner.close()
        await jobs.push("foreign.job", [5], queue=queue_name, priority=-40)
        async with Worker(jobs, concurrency=1) as worker:
            await until(lambda: worker.counts["completed"] == 5, 30)
    assert set(order) == {None, 4, 5, 9, 255}
    if queue_type == "classic":
        # What is above 9 is worked first, fails, and waits for its next attempt.
        assert [one for one in order if one != 255] == [9, 4, 5, None]


@pytest.mark.parametrize(("first", "second"), [(SPEC, WEB), (WEB, SPEC)], ids=["SPEC first", "WEB first"])
async def test_programs_of_both_naming_profiles_meet_in_one_queue(
    broker_uri: str, eye: Eye, queue_name: str, first: Names, second: Names
) -> None:
    prefix = f"meet.{queue_name}."
    done: dict[int, list[int]] = {}
    async with (
        Jobs(broker_uri, topology=Topology(names=first, prefix=prefix), create_queues=True) as ours,
        Jobs(broker_uri, topology=Topology(names=second, prefix=prefix), create_queues=True) as theirs,
    ):
        for program in (ours, theirs):

            @program.handler(
                "foreign.job",
                queue=queue_name,
                retry=QUICK,
            )
            async def run(number: int) -> None:
                attempts = done.setdefault(number, [])
                attempts.append(current_job().attempt)
                if number == 4 or len(attempts) == 1:
                    raise ConnectionError

        for number in range(2):
            await ours.push("foreign.job", [number], queue=queue_name)
        for number in range(2, 5):
            await theirs.push("foreign.job", [number], queue=queue_name)
        async with Worker(ours, concurrency=1) as first_worker, Worker(theirs, concurrency=1) as other:

            def ended() -> int:
                counts = (first_worker.counts, other.counts)
                return sum(one["completed"] + one["discarded"] for one in counts)

            await until(lambda: ended() == 5, 30)
    assert done == {number: [1, 2] for number in range(5)}
    # What has died is where the profile that came first keeps it.
    assert await eye.count(f"{prefix}{first.dead_letter_queue.format(queue=queue_name)}") == 1


async def test_intake_refuses_what_is_no_envelope_and_takes_the_rest(
    broker_uri: str, jobs: Jobs, foreigner: Foreigner, queue_name: str
) -> None:
    done: list[int] = []

    @jobs.handler("foreign.job", queue=queue_name)
    async def run(number: int) -> None:
        done.append(number)

    refused = {
        foreigner.push(queue_name, specversion=None, args=[0]): "specversion: is missing",
        foreigner.push(queue_name, specversion="2.0", args=[0]): "specversion: must be '1.0', is '2.0'",
        foreigner.push(queue_name, args=None): "args: is missing",
        foreigner.push(queue_name, type=None, args=[0]): "type: ",
        foreigner.push(queue_name, args="0"): "args: ",
    }
    foreigner.push(queue_name, id=None, args=[0])
    good = [foreigner.push(queue_name, args=[1]), foreigner.push(queue_name, args=[2], queue=None, extra={"any": 1})]
    async with Worker(jobs) as worker:
        await until(lambda: worker.counts["completed"] == 2 and worker.counts["discarded"] == 6)
    assert sorted(done) == [1, 2]
    for job_id in good:
        assert (await info(jobs, job_id)).state == "completed"
    async with DeadLetters(jobs, queue_name) as dead:
        reasons = {one.id: one.error for one in await dead.all(10)}
    assert len(reasons) == 6
    for job_id, reason in refused.items():
        assert reasons[job_id].startswith(reason)
        ended = await info(jobs, job_id)
        assert (ended.state, ended.certain) == ("discarded", True)
        assert str((ended.error or {})["message"]).startswith(reason)
    assert any(text.startswith("id: ") for text in reasons.values())
