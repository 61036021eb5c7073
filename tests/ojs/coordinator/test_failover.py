"""A primary that dies or hangs: coordinators go on with the replica that was promoted, and lose nothing.

`make failover` does so again and again under load, with processes of their own.
"""

import asyncio
import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.client.breaking import until
from tests.ojs.coordinator.test_job_store import event
from tests.ojs.databases import make_database
from tests.postgresql import HINT, USER, Server, directory_for_servers, is_installed
from waybill.broker import Broker
from waybill.ojs import Coordinator, Jobs
from waybill.ojs.coordinator.database.engine import url_of
from waybill.ojs.coordinator.sql_job_store import SqlJobStore
from waybill.ojs.coordinator.store_thread import Outage
from waybill.ojs.coordinator.stream_identity import StreamReplaced
from waybill.ojs.errors import DatabaseUnusable


@pytest.fixture
def primary() -> Iterator[Server]:
    """A primary with a database."""
    if not is_installed():
        pytest.skip(HINT)
    with directory_for_servers() as directory:
        server = Server(directory, "a").create().start()
        server.create_database("jobs")
        try:
            yield server
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("database", "hosts"),
    [
        ("postgresql://u:p@a:1,b:2/jobs", ("a:1", "b:2")),
        ("postgresql://a,b,c/jobs?sslmode=require", ("a", "b", "c")),
        ("postgresql+psycopg://u@/jobs?host=a:1&host=b:2", ("a:1", "b:2")),
    ],
)
def test_a_url_may_name_several_hosts(database: str, hosts: tuple[str, ...]) -> None:
    url = url_of(database)
    assert (url.drivername, url.database, url.query["host"]) == ("postgresql+psycopg", "jobs", hosts)
    assert url.query["target_session_attrs"] == "read-write"
    assert url_of(f"{database}{'&' if '?' in database else '?'}target_session_attrs=any").query[
        "target_session_attrs"
    ] == "any"  # fmt: skip


def test_one_host_is_used_as_it_is() -> None:
    url = url_of("postgresql://u:p@a:1/jobs?connect_timeout=9")
    assert (url.host, url.port, url.username, url.password) == ("a", 1, "u", "p")
    assert (url.query["connect_timeout"], "target_session_attrs" in url.query) == ("9", False)


def test_what_a_database_has_lost_is_folded_again(database: str) -> None:
    messages = [(offset, [event("job.enqueued", f"job{offset}", 1)]) for offset in range(9)]
    with SqlJobStore(database) as one, SqlJobStore(database) as two:
        one.apply(messages[:3])
        two.apply(messages[:3])
        mark = one.count_changes(None).mark
        one.apply(messages[3:6])
        with one._engine.begin() as connection:
            # As a replica that was behind when it was promoted.
            for statement in (
                "UPDATE waybill_position SET next_offset = 3",
                "DELETE FROM waybill_job WHERE id > 'job2'",
                "UPDATE waybill_count SET jobs = 3",
            ):
                connection.exec_driver_sql(statement)
        with pytest.raises(StreamReplaced, match="its position is 3, after 6"):
            one.apply(messages[6:])
        one.begin_anew()
        assert one.begin()[0] == 3, "what it still has is not folded again"
        one.apply(messages[3:])
        assert one.counts() == {("q", "available"): 9}
        assert one.count_changes(mark).is_whole, "nobody takes old changes for new ones"
        with pytest.raises(StreamReplaced):
            two.apply(messages[3:])
        two.begin_anew()
        assert two.begin()[0] == 9


def test_an_outage_is_logged_when_it_begins_and_ends_and_rarely_between(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    outage = Outage()
    outage.over()
    for second in range(65):
        now = float(second)
        outage.failed(ConnectionError("it is\naway"), 1.0)
    outage.over()
    outage.over()
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert texts == [
        "the job state cannot be written, trying again every 1 s; events wait in the stream",
        "the job state has not been written for 30 s: it is",
        "the job state has not been written for 60 s: it is",
        "the job state is written again, after 64.0 s",
    ]


async def test_coordinators_go_on_with_a_replica_that_was_promoted(
    primary: Server,
    queue_name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    for name, seconds in {"POLL_SECONDS": 0.1, "WARN_SECONDS": 0.2, "CUT_SECONDS": 1.0}.items():
        monkeypatch.setattr(f"waybill.ojs.coordinator.store_thread.{name}", seconds)
    monkeypatch.setattr("waybill.ojs.coordinator.stream_fold.RETRY_SECONDS", 0.1)
    second = primary.replica("b").start()
    request.addfinalizer(second.kill)
    third = Server(second._directory, "c")
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in (primary, second, third))
    database = f"postgresql://{USER}@{hosts}/jobs?connect_timeout=2"
    ids: list[str] = []
    async with Broker(port=0) as broker, Jobs(broker.uri(), create_queues=True) as jobs:

        async def push_until_known(coordinator: Coordinator, count: int) -> None:
            ids.extend([(await jobs.push("a.b", queue=queue_name)).id for _ in range(count)])
            async with asyncio.timeout(60):
                while len(await _known(coordinator, ids)) < len(ids):
                    await asyncio.sleep(0.05)

        one = Coordinator(jobs, queues=[queue_name], database=database)
        other = Coordinator(jobs, queues=[queue_name], database=database)
        async with one, other:
            await push_until_known(one, 20)
            await asyncio.to_thread(_stop_streaming, second)
            await push_until_known(other, 20)
            primary.kill()
            await asyncio.to_thread(second.promote)
            await push_until_known(one, 5)
            await push_until_known(other, 5)
            # Now one hangs: its connections stay open, and nothing comes.
            third = await asyncio.to_thread(second.replica, "c", third.port)
            third.start()
            request.addfinalizer(third.kill)
            await asyncio.to_thread(_wait_until_it_has_all, second, third)
            second.pause()
            try:
                await asyncio.to_thread(third.promote)
                await push_until_known(one, 5)
                await push_until_known(other, 5)
                await until(lambda: "closing its connections" in caplog.text)
            finally:
                second.kill()
                await asyncio.to_thread(third.kill)


async def _known(coordinator: Coordinator, ids: list[str]) -> list[str]:
    """Those of these jobs that a coordinator knows; none while its database is away."""
    try:
        return [job.id for job in await coordinator.view.many(ids)]
    except DatabaseUnusable:
        return []


def _stop_streaming(replica: Server) -> None:
    """Cut a replica off from its primary."""
    replica.execute("ALTER SYSTEM SET primary_conninfo = ''")
    replica.execute("SELECT pg_reload_conf()")
    replica.wait_for("SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")


def _wait_until_it_has_all(source: Server, replica: Server) -> None:
    position = source.execute("SELECT pg_current_wal_flush_lsn()")
    replica.wait_for(f"SELECT pg_last_wal_replay_lsn() >= '{position}'")


async def test_requests_fail_soon_while_the_database_is_away(
    postgresql: str, waybill_uri: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that breaks is one error at most, and none if it broke before it was used."""
    database = make_database(postgresql)
    async with Jobs(waybill_uri) as jobs, Coordinator(jobs, queues=[queue_name], database=database) as coordinator:
        store = coordinator.view._known
        assert isinstance(store, SqlJobStore)
        assert await coordinator.view.get("none") is None
        store.cut()
        assert await coordinator.view.get("none") is None
        assert await coordinator.view.read(lambda one: one.forget_old(datetime.now(UTC))) == (0, False)
