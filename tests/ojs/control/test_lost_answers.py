"""The connection is lost while somebody asks, or before."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.ojs.eye import until
from waybill.client import ReconnectPolicy
from waybill.ojs import ControlFailed, Coordinator, Jobs
from waybill.ojs.workflow.requests import WAIT, WorkflowRequest
from waybill.testing import TestBroker

QUICK = ReconnectPolicy(first_delay_s=0.05, max_delay_s=0.1)
JOB = "018f0000-0000-7000-8000-000000000000"


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as broker:
        yield broker


async def test_who_asks_while_the_connection_is_away_is_answered_when_it_is_back(broker: TestBroker) -> None:
    others = Jobs(broker.uri(), reconnect=QUICK)
    async with Jobs(broker.uri(), reconnect=QUICK) as jobs, others, Coordinator(others, queues=["q"]):
        assert await jobs.info(JOB, "q") is None
        connection = (await jobs.broker_connection()).connection
        with broker.unreachable():
            await until(lambda: not connection.is_open)
            asking = asyncio.create_task(jobs.info(JOB, "q", timeout=8))
            await asyncio.sleep(0.1)
        assert await asking is None


async def test_what_does_no_harm_is_asked_again_when_the_answer_is_lost(broker: TestBroker) -> None:
    others = Jobs(broker.uri(), reconnect=QUICK)
    async with Jobs(broker.uri(), reconnect=QUICK) as jobs, asyncio.timeout(15):
        # Nobody answers.
        asking = asyncio.create_task(jobs.info(JOB, "q", timeout=12))
        await until(lambda: jobs._control is not None and bool(jobs._control._waiting))
        await asyncio.sleep(0.2)
        broker.drop_connections()
        # The first question is for a queue that is no more.
        async with others, Coordinator(others, queues=["q"]):
            assert await asking is None


async def test_who_waits_for_an_answer_that_is_lost_is_told_at_once(broker: TestBroker) -> None:
    async with Jobs(broker.uri(), reconnect=QUICK) as jobs, asyncio.timeout(8):
        # Nobody answers.
        asking = asyncio.create_task((await jobs.control()).ask(None, WAIT, WorkflowRequest(JOB), 60))
        await until(lambda: jobs._control is not None and bool(jobs._control._waiting))
        await asyncio.sleep(0.2)
        broker.drop_connections()
        with pytest.raises(ControlFailed, match="the connection was lost"):
            await asking
