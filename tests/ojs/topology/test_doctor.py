"""The doctor finds what is unsafe, on both brokers; on RabbitMQ's management plugin it sees more."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye, until
from tests.rabbitmq import INSTALL_HINT, RabbitMQ, installed
from waybill.broker import Broker, FirstUser
from waybill.client import Connection, connect
from waybill.ojs import Jobs, Topology, Worker
from waybill.ojs.topology.doctor import Diagnosis, Examination, Severity
from waybill.ojs.topology.doctor.management import Management, ManagementFailed


@pytest.fixture
async def connection(broker_uri: str) -> AsyncIterator[Connection]:
    async with connect(broker_uri) as connection:
        yield connection


def of(found: list[Diagnosis], check: str) -> Diagnosis:
    assert check in {one.check for one in found}, found
    return next(one for one in found if one.check == check)


async def test_a_queue_at_work_is_well(broker_uri: str, connection: Connection, queue_name: str) -> None:
    jobs = Jobs(broker_uri)
    async with Worker(jobs, queues=[queue_name], coordinator=True):
        found = await Examination(connection, Topology(), [queue_name]).diagnoses()
    product = connection.server_properties["product"]
    assert [one.check for one in found] == (["classic-queues"] if product == "RabbitMQ" else [])
    assert not [one for one in found if one.severity is not Severity.NOTE]


async def test_what_loses_jobs_is_a_problem(connection: Connection, eye: Eye, queue_name: str) -> None:
    await eye.call(lambda: eye.channel.queue_declare(f"ojs.queue.{queue_name}", durable=True))
    await eye.call(lambda: eye.channel.queue_declare(f"ojs.queue.dlx.{queue_name}", durable=True))
    await eye.call(lambda: eye.channel.basic_publish("", f"ojs.queue.{queue_name}", b"{}"))
    found = await Examination(connection, Topology(), [queue_name]).diagnoses()
    unbound = of(found, "dead-letters-lost")
    assert unbound.severity is Severity.PROBLEM
    assert f"ojs.queue.dlx.{queue_name} is not bound" in unbound.cause
    assert f"topology declare {queue_name}" in unbound.remedy
    assert "x-dead-letter-exchange" in of(found, "no-dead-letter-exchange").cause
    assert of(found, "no-consumers").finding == "1 jobs wait without a consumer"
    assert await eye.count(f"ojs.queue.{queue_name}") == 1, "the examination leaves nothing behind"
    assert await eye.count(f"ojs.queue.dlx.{queue_name}") == 0


async def test_what_is_missing_paused_or_dead_is_named(
    broker_uri: str, connection: Connection, queue_name: str
) -> None:
    missing = await Examination(connection, Topology(), [queue_name]).diagnoses()
    assert f"queue ojs.queue.{queue_name}" in {one.subject for one in missing if one.check == "missing"}
    async with Jobs(broker_uri) as jobs:
        async with Worker(jobs, queues=[queue_name]) as worker:
            await jobs.push("no.handler", queue=queue_name)
            await until(lambda: worker.counts["discarded"] == 1)
        await jobs.pause(queue_name)
    found = await Examination(connection, Topology(), [queue_name]).diagnoses()
    assert of(found, "paused").remedy == f"`waybill queue resume {queue_name}`"
    assert of(found, "dead-letters").finding == "1 dead letters"
    assert of(found, "no-coordinator").severity is Severity.NOTE
    different = await Examination(connection, replace(Topology(), queue_type="quorum"), [queue_name]).diagnoses()
    assert "x-queue-type" in of(different, "mismatch").cause


async def test_a_job_longer_than_the_consumer_timeout(connection: Connection) -> None:
    examination = Examination(connection, Topology(), [], longest_timeout=7200, consumer_timeout=1800)
    found = of(await examination.diagnoses(), "consumer-timeout")
    assert "consumer_timeout = 7260000" in found.remedy
    product = connection.server_properties["product"]
    by_default = await Examination(connection, Topology(), [], longest_timeout=7200).diagnoses()
    assert [one.check for one in by_default] == (["consumer-timeout"] if product == "RabbitMQ" else [])


async def test_no_heartbeats_are_noticed(broker_uri: str) -> None:
    async with connect(broker_uri + "?heartbeat=0") as connection:
        assert [one.check for one in await Examination(connection, Topology(), []).diagnoses()] == ["heartbeat"]


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        (("^ojs\\.", "^ojs\\.", "^ojs\\."), ["use queues amq.gen-", "publish to amq.default"]),
        (("^(ojs\\.|amq\\.gen-)", "^(ojs\\.|amq\\.default$)", "^(ojs\\.|amq\\.gen-)"), []),
    ],
)
async def test_permissions_for_names_of_the_broker(patterns: tuple[str, str, str], wanted: list[str]) -> None:
    async with (
        Broker(port=0, users=[FirstUser("ada", "secret", (), {"/ojs": patterns})]) as broker,
        connect(broker.uri("/ojs", "ada", "secret")) as connection,
    ):
        found = await Examination(connection, Topology(), []).diagnoses()
    assert [one.check for one in found] == ["permission"] * len(wanted)
    assert all(text in one.finding for text, one in zip(wanted, found, strict=True))


async def test_what_a_user_has_no_access_to_is_one_finding(queue_name: str) -> None:
    users = [
        FirstUser("root", "r", (), {"/ojs": (".*",) * 3}),
        FirstUser("ada", "a", (), {"/ojs": ("^$", "^ojs", "^$")}),
    ]
    async with Broker(port=0, users=users) as broker:
        async with Jobs(broker.uri("/ojs", "root", "r"), create_queues=True) as jobs:
            await jobs.push("doctor.any", queue=queue_name)
        async with connect(broker.uri("/ojs", "ada", "a")) as connection:
            found = await Examination(connection, Topology(), [queue_name]).diagnoses()
    assert len([one for one in found if one.check == "refused"]) == 1
    assert "and " in of(found, "refused").subject


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_broker_that_takes_one_message_and_no_more(tmp_path: Path, *, is_new: bool) -> None:
    async with Broker(port=0, data_dir=tmp_path) as broker:
        async with Jobs(broker.uri("/ojs")) as jobs:
            if not is_new:
                await jobs.push("doctor.any")
        broker.reconfigure(disk_free_limit_bytes=1 << 50)
        async with connect(f"{broker.uri('/ojs')}?request_timeout=10000") as connection:
            found = await Examination(connection, Topology(), []).diagnoses()
            broker.reconfigure(disk_free_limit_bytes=0)
    assert "it says: low on disk" in of(found, "blocked").cause


@pytest.fixture(scope="module")
def managed() -> Iterator[RabbitMQ]:
    if not installed():
        pytest.skip(INSTALL_HINT)
    with RabbitMQ("rabbitmq_management") as broker:
        yield broker


@requirement("OJSW-028")
async def test_the_management_plugin_tells_more(managed: RabbitMQ) -> None:
    topology = Topology(max_length=5, reject_when_full=False)
    uri = managed.uri("/ojs")
    management = Management(f"http://guest:guest@127.0.0.1:{managed.management_port}", "/ojs")
    async with Jobs(uri, topology=topology) as jobs, connect(uri) as connection:
        await jobs.push("email.send", queue="inbox")
        channel = await connection.channel(confirms=False)
        await channel.unbind_queue("ojs.queue.dlx.inbox", "ojs.exchange.dlx", "inbox")
        await channel.declare_queue("ojs.queue.transient")
        await channel.publish(b"careless", routing_key="ojs.queue.transient")
        await channel.consume("ojs.queue.transient")
        found: list[Diagnosis] = []
        wanted = {"not-bound", "drops-when-full", "transient", "no-confirms", "no-prefetch"}
        async with asyncio.timeout(30):
            # The plugin counts every five seconds.
            while {one.check for one in found} != wanted:
                found = await asyncio.to_thread(management.diagnoses, topology, ("inbox",))
    assert of(found, "not-bound").subject == "ojs.queue.dlx.inbox"
    with pytest.raises(ManagementFailed, match="401") as refused:
        Management(f"http://ada:s3cret@127.0.0.1:{managed.management_port}", "/ojs").get("nodes")
    assert "s3cret" not in str(refused.value)


async def test_permissions_that_are_missing(managed: RabbitMQ) -> None:
    """A user who may read only: the broker's own refusal is the cause."""
    management = f"http://127.0.0.1:{managed.management_port}/api"
    for path, body in (
        ("users/reader", b'{"password": "reader", "tags": ""}'),
        ("permissions/%2Fojs/reader", b'{"configure": "^ojs.probe.*", "write": "^$", "read": ".*"}'),
    ):
        await asyncio.to_thread(_put, f"{management}/{path}", body)
    async with connect(managed.uri("/ojs").replace("guest:guest", "reader:reader")) as connection:
        found = await Examination(connection, Topology(), []).diagnoses()
    refused = of(found, "permission")
    assert (refused.subject, refused.finding) == ("user reader", "may not publish")
    assert "ACCESS_REFUSED" in refused.cause


def _put(url: str, body: bytes) -> None:
    import base64
    import urllib.request

    login = base64.b64encode(b"guest:guest").decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT")) as answer:  # noqa: S310
        assert answer.status in {201, 204}
