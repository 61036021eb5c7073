"""A producer asks the coordinator to do what he may not do himself: cancel others' jobs, write into others' queues.

On both brokers: each vouches for the user-id of a message.
"""

import asyncio
import functools
import json
from collections.abc import AsyncIterator

import pika
import pytest

from tests.ojs.control.test_control import state_of
from tests.ojs.eye import Eye, until
from tests.rabbitmq import READER, RabbitMQ
from waybill.broker import Broker
from waybill.ojs import Coordinator, CronJob, DuplicateJob, Jobs, Unique, chain
from waybill.ojs.coordinator.policy import ControlPolicy
from waybill.ojs.handler import NewJob, Options


@pytest.fixture
async def uri() -> AsyncIterator[str]:
    async with Broker(host="127.0.0.1", port=0) as broker:
        broker.administration.put_user("mallory", "mallory", ())
        broker.administration.set_permission("mallory", "/", ".*", ".*", ".*")
        yield broker.uri()


def of_mallory(uri: str) -> str:
    return uri.replace("guest:guest", "mallory:mallory")


async def test_nobody_cancels_a_job_of_somebody_elses(uri: str) -> None:
    async with Jobs(uri) as jobs, Jobs(of_mallory(uri)) as others, Coordinator(jobs, queues=["q"]) as coordinator:
        job = await jobs.push("victim.work", queue="q")
        own = await others.push("victim.work", queue="q")
        await state_of(jobs, own.id, "q", "available")
        await others.cancel(job.id, "q")
        await others.cancel(own.id, "q")
        await state_of(jobs, own.id, "q", "cancelled")
        assert coordinator.skipped_requests["refused"] == 1
        assert [one.id for one in await others.newest("q")] == [own.id]
        eye = await asyncio.to_thread(Eye, of_mallory(uri))
        body = json.dumps({"job_id": job.id}).encode()
        # Without a user, and with one that the broker would have to lie about.
        await eye.publish("ojs.exchange.direct", "control.q", body, type="ojs.control.cancel")
        await until(lambda: coordinator.skipped_requests["refused"] == 2)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="user_id"):
            await eye.publish("ojs.exchange.direct", "control.q", body, type="ojs.control.cancel", user_id="guest")
        assert (await state_of(jobs, job.id, "q", "available")).ended_at is None
        # The coordinator's own user may do all.
        await jobs.cancel(job.id, "q")
        await state_of(jobs, job.id, "q", "cancelled")
        await asyncio.to_thread(eye.close)


async def test_a_policy_may_trust_more_users_or_everybody(uri: str) -> None:
    async with Jobs(uri) as jobs, Jobs(of_mallory(uri)) as others:
        job, second = [await jobs.push("victim.work", queue="q") for _ in range(2)]
        async with Coordinator(jobs, queues=["q"], policy=ControlPolicy(trusted=["mallory"])):
            await others.cancel(job.id, "q")
            await state_of(jobs, job.id, "q", "cancelled")
        async with Coordinator(jobs, queues=["q"], policy=ControlPolicy(trusts_everybody=True)):
            eye = await asyncio.to_thread(Eye, uri)
            body = json.dumps({"job_id": second.id}).encode()
            await eye.publish("ojs.exchange.direct", "control.q", body, type="ojs.control.cancel")
            await state_of(jobs, second.id, "q", "cancelled")
            await asyncio.to_thread(eye.close)


async def test_answers_go_to_whoever_asks_and_nowhere_else(uri: str) -> None:
    async with Jobs(uri) as jobs, Coordinator(jobs, queues=["q"]) as coordinator:
        job = await jobs.push("victim.work", queue="q")
        eye = await asyncio.to_thread(Eye, of_mallory(uri))
        body = json.dumps({"job_id": job.id}).encode()
        for name in ("victim", "ojs.queue.q", "ojs.reply.guest.1", "ojs.reply.mallory.1"):
            passive = name == "ojs.queue.q"
            await eye.call(functools.partial(eye.channel.queue_declare, name, durable=True, passive=passive))
            await eye.publish(
                "ojs.exchange.direct", "control.q", body, type="ojs.control.info", reply_to=name, user_id="mallory"
            )
        answer = await eye.wait_for("ojs.reply.mallory.1")
        assert answer.json()["jobs"][0]["id"] == job.id
        assert coordinator.skipped_requests["refused"] == 3
        assert [await eye.count(name) for name in ("victim", "ojs.queue.q", "ojs.reply.guest.1")] == [0, 1, 0]
        await asyncio.to_thread(eye.close)


async def test_a_job_is_not_replaced_by_one_of_somebody_elses(uri: str) -> None:
    async with Jobs(uri) as jobs, Jobs(of_mallory(uri)) as others, Coordinator(jobs, queues=["q"]):
        unique = Unique(keys=("type",), on_conflict="replace")
        job = await jobs.push("victim.work", queue="q", unique=unique)
        with pytest.raises(DuplicateJob):
            await others.push("victim.work", queue="q", unique=unique)
        await state_of(jobs, job.id, "q", "available")


@pytest.mark.parametrize("defined", ["workflow", "cron"])
async def test_nor_by_a_step_or_a_cron_job_that_somebody_else_has_defined(uri: str, defined: str) -> None:
    """A coordinator pushes these jobs, but replaces others with the rights of the user who has defined them."""
    async with Jobs(uri) as jobs, Jobs(of_mallory(uri)) as others, Coordinator(jobs, queues=["q"]) as coordinator:
        unique = Unique(keys=("type",), on_conflict="replace")
        job = await jobs.push("victim.work", queue="q", unique=unique)
        own = await others.push("own.work", queue="q", unique=unique)
        await state_of(jobs, own.id, "q", "available")
        for by, job_type in ((others, "victim.work"), (others, "own.work"), (jobs, "victim.work")):
            if defined == "workflow":
                await chain(NewJob(job_type, [], Options(queue="q", unique=unique))).push(by)
            else:
                options: dict[str, object] = {"queue": "q", "unique": {"keys": ["type"], "on_conflict": "replace"}}
                name = f"{job_type.replace('.', '-')}-{by is jobs}".lower()
                await by.crons.register(CronJob(name=name, cron="@yearly", type=job_type, options=options))
                await by.crons.run(name)
            if by is others and job_type == "victim.work":
                await until(lambda: coordinator.skipped_requests["refused"] == 1)
                await state_of(jobs, job.id, "q", "available")
            else:
                await state_of(jobs, own.id if by is others else job.id, "q", "cancelled")


async def test_rabbitmq_vouches_for_the_user_as_well(rabbitmq: RabbitMQ) -> None:
    """Requests and events bear the user, and a foreign name is refused."""
    async with Jobs(rabbitmq.uri("/ojs")) as jobs, Coordinator(jobs, queues=["vouched"]) as coordinator:
        job = await jobs.push("victim.work", queue="vouched")
        await state_of(jobs, job.id, "vouched", "available")
        eye = await asyncio.to_thread(Eye, rabbitmq.uri("/ojs"))
        body = json.dumps({"job_id": job.id}).encode()
        await eye.publish("ojs.exchange.direct", "control.vouched", body, type="ojs.control.cancel")
        await until(lambda: coordinator.skipped_requests["refused"] == 1)
        await jobs.cancel(job.id, "vouched")
        await state_of(jobs, job.id, "vouched", "cancelled")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="user_id"):
            await eye.publish("ojs.exchange.direct", "control.vouched", body, user_id=READER)
        await asyncio.to_thread(eye.close)


async def test_a_user_of_another_name_than_the_uri_says_works_without_one(uri: str) -> None:
    """As with tokens and certificates: the broker refuses the name once, and nothing is lost."""
    async with Jobs(uri) as jobs:
        session = await jobs.broker_connection()
        session.identity.user = "somebody"
        job = await jobs.push("victim.work", queue="q")
        assert session.identity.user is None
        async with Coordinator(jobs, queues=["q"]):
            session.identity.user = "somebody"
            assert await jobs.info(job.id, "q") is not None
