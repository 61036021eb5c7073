"""Cron jobs with a coordinator and a worker: registered, fired, told of, and asked about; over each kind of store."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.client.breaking import until
from tests.ojs.databases import make_database
from waybill.broker import Broker
from waybill.client import BasicProperties, connect
from waybill.ojs import ControlFailed, Coordinator, CronJob, CronNotFound, InvalidJob, Jobs, Retry, Worker, current_job
from waybill.ojs.coordinator.policy import ControlPolicy
from waybill.ojs.cron import schedule
from waybill.ojs.cron.cron_message import CRON_REQUEST


def test_cron_jobs_are_declared_at_handlers() -> None:
    jobs = Jobs("amqp://guest:guest@127.0.0.1:1/%2F")

    @jobs.cron("@daily", name="other", args=["x"], queue="else", jitter=timedelta(seconds=5))
    @jobs.cron(every=timedelta(minutes=90), enabled=False)
    @jobs.cron("*/5 * * * *", tz="Europe/Berlin", overlap="enqueue", missed="all", tags=["a"], meta={"b": 1})
    @jobs.handler("report.daily_numbers", queue="reports", retry=Retry(max_attempts=2), timeout=1.5, priority=3)
    async def report(kind: str = "all") -> None: ...

    @jobs.cron("@hourly", job_type="cache.warm", queue="cache")
    def warm() -> None: ...

    assert (report.type, warm.type, warm.queue) == ("report.daily_numbers", "cache.warm", "cache")
    found = {one.name: one for one in jobs.crons}
    assert list(found) == ["report.daily-numbers", "report.daily-numbers-2", "other", "cache.warm"]
    first, second, other, _ = found.values()
    assert msgspec.to_builtins(first) == {
        "name": "report.daily-numbers", "cron": "*/5 * * * *", "type": "report.daily_numbers",
        "timezone": "Europe/Berlin", "overlap_policy": "enqueue", "missed_policy": "all", "jitter": 0.0,
        "options": {
            "queue": "reports", "retry": {"max_attempts": 2}, "timeout_ms": 1500, "priority": 3, "tags": ["a"],
            "meta": {"b": 1},
        },
    }  # fmt: skip
    assert (second.cron, second.enabled) == ("@every 1h30m", False)
    assert (other.args, other.options["queue"], other.jitter) == (["x"], "else", 5.0)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"cron": "61 * * * *"}, InvalidJob), ({"cron": "@daily", "tz": "EST"}, InvalidJob), ({}, ValueError),
        ({"cron": "@daily", "every": timedelta(1)}, ValueError), ({"cron": "@daily", "name": "Bad Name"}, InvalidJob),
        ({"cron": "@daily", "args": [1, 2]}, InvalidJob), ({"cron": "@daily", "jitter": -1}, InvalidJob),
        ({"cron": "@daily", "name": "taken"}, ValueError), ({"every": timedelta(0)}, InvalidJob),
        ({"cron": "@daily", "queue": "Bad"}, InvalidJob), ({"cron": "@daily", "name": "x" * 256}, InvalidJob),
        ({"cron": "@daily", "overlap": "maybe"}, InvalidJob), ({"cron": "@daily", "missed": "some"}, InvalidJob),
        ({"cron": "@daily", "timezone": "Europe/Berlin"}, TypeError), ({"every": "5m"}, TypeError),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_where_it_is_written(settings: dict[str, Any], error: type[Exception]) -> None:
    jobs = Jobs("amqp://guest:guest@127.0.0.1:1/%2F")

    @jobs.cron("@daily", name="taken")
    @jobs.handler("a.b")
    async def run(kind: str = "") -> None: ...

    with pytest.raises(error):
        jobs.cron(**settings)(run)


class Setting:
    """A broker with a coordinator, and the events that it has written."""

    def __init__(self, jobs: Jobs, coordinator: Coordinator) -> None:
        self.jobs = jobs
        self.coordinator = coordinator
        self.events: list[dict[str, Any]] = []

    def told(self, kind: str) -> list[dict[str, Any]]:
        """Return what events of a type say."""
        return [one["data"] for one in self.events if one["type"] == kind]


@pytest.fixture(params=["memory", "postgresql"])
async def setting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Setting]:
    kind: str = request.param
    database = ":memory:" if kind == "memory" else make_database(request.getfixturevalue("postgresql"))
    monkeypatch.setattr("waybill.ojs.coordinator.leader.BEAT_SECONDS", 0.05)
    monkeypatch.setattr("waybill.ojs.cron.scheduler.EVALUATION_SECONDS", 0.0)
    async with (
        Broker(port=0) as broker,
        Jobs(broker.uri()) as jobs,
        Coordinator(jobs, queues=["q"], database=database) as coordinator,
    ):
        made = Setting(jobs, coordinator)
        async with connect(broker.uri()) as connection:
            channel = await connection.channel(prefetch_count=1000)
            consumer = await channel.consume(jobs.topology.event_stream, arguments={"x-stream-offset": "first"})

            async def read() -> None:
                async for delivery in consumer:
                    found = json.loads(delivery.body)
                    made.events += found if isinstance(found, list) else [found]
                    delivery.ack()

            task = asyncio.create_task(read())
            yield made
            task.cancel()


async def test_workers_register_and_ticks_run(setting: Setting) -> None:
    jobs, metas = setting.jobs, []

    @jobs.cron(every=timedelta(milliseconds=100), overlap="allow", meta={"team": "a"}, name="often")
    @jobs.handler("a.b", queue="q")
    async def run() -> None:
        metas.append(current_job().meta)

    async with Worker(jobs):
        await until(lambda: len(metas) >= 3)
        await jobs.crons.pause("often", by="ada")
        found = await jobs.crons.get("often")
        await until(lambda: len(metas) == found.run_count == len(setting.told("cron.triggered")))
        assert len({meta["cron_triggered_at"] for meta in metas}) == len(metas)
        assert {(meta["cron_name"], meta["team"]) for meta in metas} == {("often", "a")}
        assert (found.status, found.enabled, found.next_run_at) == ("paused", False, None)
        told = setting.told("cron.triggered")
        assert [one["run_count"] for one in told] == list(range(1, len(told) + 1))
        assert {(one["cron_name"], one["cron_expression"], one["timezone"]) for one in told} == {
            ("often", "@every 100ms", "UTC")
        }
        await until(lambda: any(one["reason"] == "disabled" for one in setting.told("cron.skipped")))
        assert await jobs.crons.sync() == {"often": "unchanged"}


async def test_a_tick_is_skipped_while_the_job_before_runs(setting: Setting) -> None:
    jobs, started, go = setting.jobs, [], asyncio.Event()

    @jobs.cron(every=timedelta(milliseconds=100), name="slow")
    @jobs.handler("a.b", queue="q")
    async def run() -> None:
        started.append(current_job().id)
        await go.wait()

    async with Worker(jobs):
        await until(lambda: len(setting.told("cron.skipped")) >= 2)
        skipped = setting.told("cron.skipped")[-1]
        assert (skipped["reason"], skipped["cron_name"], skipped["active_job_id"] in started) == (
            "overlap_skip", "slow", True,
        )  # fmt: skip
        await jobs.crons.remove("slow")
        go.set()


async def test_a_tick_cancels_the_job_before(setting: Setting) -> None:
    jobs, started = setting.jobs, []

    @jobs.cron(every=timedelta(milliseconds=200), name="newest", overlap="cancel_previous")
    @jobs.handler("a.b", queue="q")
    async def run() -> None:
        started.append(current_job().id)
        await asyncio.sleep(30)

    async with Worker(jobs) as worker:
        await until(lambda: worker.counts["cancelled"] >= 2, 30)
        await jobs.crons.remove("newest")
        for job_id in started:
            await jobs.cancel(job_id)
        await until(lambda: worker.running_count == 0)


async def test_ticks_wait_for_the_one_before(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    jobs, running, most, done, go = setting.jobs, [0], [0], [], asyncio.Event()

    @jobs.cron(every=timedelta(milliseconds=50), name="queued", overlap="enqueue")
    @jobs.handler("a.b", queue="q")
    async def run() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await go.wait()
        running[0] -= 1
        done.append(str(current_job().meta["cron_triggered_at"]))

    async with Worker(jobs):
        await until(lambda: "wait for the running one" in caplog.text)
        await jobs.crons.pause("queued")
        found = await jobs.crons.get("queued")
        waiting = [one for one in found.firings if one.state == "waiting"]
        known = await jobs.info(waiting[0].job_id or "")
        assert known is not None
        assert known.state == "available"
        go.set()
        await until(lambda: len(done) == found.run_count, 30)
    assert most == [1]
    assert done == sorted(done)


async def test_run_now_and_what_is_known(setting: Setting) -> None:
    crons = setting.jobs.crons
    job = CronJob(
        name="rare", cron="0 0 1 1 *", type="a.b", options={"queue": "q"}, args=[1], description="once a year"
    )
    assert await crons.register(job) == "created"
    assert await crons.register(job) == "unchanged"
    job_id = await crons.run("rare")
    (listed,) = await crons.list()
    found = await crons.get("rare", next_runs=3)
    assert (listed.name, listed.run_count, listed.owner) == ("rare", 1, "guest")
    assert [one[4:] for one in found.next_runs] == ["-01-01T00:00:00.000Z"] * 3
    assert [(one.kind, one.job_id) for one in found.firings] == [("manual", job_id)]
    await until(lambda: [one["job_id"] for one in setting.told("cron.triggered")] == [job_id])
    changed = msgspec.structs.replace(job, cron="@monthly", timezone="Asia/Tokyo")
    assert await crons.register(changed) == "updated"
    assert (await crons.get("rare")).created_at == listed.created_at
    await crons.remove("rare")
    assert await crons.list() == []
    for question in (crons.get, crons.pause, crons.resume, crons.remove, crons.run):
        with pytest.raises(CronNotFound):
            await question("rare")
    assert await crons.register(job) == "created"
    assert (await crons.get("rare")).run_count == 0


async def test_odd_requests_are_answered_or_skipped(setting: Setting) -> None:
    jobs, coordinator = setting.jobs, setting.coordinator
    control = await jobs.control()
    for odd in (
        {"action": "register", "job": {"name": "x", "cron": "* * * * *", "type": "a.b", "args": "none"}},
        {"action": "register", "job": {"name": "x", "cron": "99 * * * *", "type": "a.b"}},
        {"action": "register", "job": {"name": "x", "cron": "@daily", "type": "a.b", "options": {"id": "1"}}},
        {"action": "register", "job": {"name": "x", "cron": "@daily", "type": "a.b", "meta": {"big": "x" * 300_000}}},
        {"action": "register"}, {"action": "get", "name": "\0"}, {"action": "run", "name": "y" * 1000},
    ):  # fmt: skip
        answer = json.loads(await control.ask(None, CRON_REQUEST, msgspec.convert(odd, _Any), 10.0))
        assert answer["error"] in {"invalid_request", "not_found"}
    with pytest.raises(ControlFailed):
        await control.ask(None, CRON_REQUEST, msgspec.convert({"action": "explode"}, _Any), 0.5)
    assert coordinator.skipped_requests["invalid"] == 1
    with pytest.raises(InvalidJob, match="cron"):
        await jobs.crons.register(CronJob(name="x", cron="nonsense", type="a.b"))
    assert await jobs.crons.list() == []


class _Any(msgspec.Struct, omit_defaults=True):
    """A request of any shape."""

    action: str = ""
    name: str = ""
    job: dict[str, object] | None = None


async def test_events_of_strangers_and_odd_ones_change_nothing(setting: Setting) -> None:
    jobs = setting.jobs
    await jobs.crons.register(CronJob(name="mine", cron="0 0 1 1 *", type="a.b", options={"queue": "q"}))
    async with connect(jobs.uri) as connection:
        channel = await connection.channel()
        for kind, data in (
            ("cron.removed", {}), ("cron.toggled", {"enabled": False}), ("cron.claimed", {"until_ms": 10**15}),
            ("cron.registered", {"job": {"name": "mine", "cron": "@hourly", "type": "c.d"}, "now_ms": 1}),
        ):  # fmt: skip
            event = {
                "id": "evt_1", "type": kind, "source": "/x", "time": "2026-01-01T00:00:00Z", "subject": "mine",
                "data": data, "specversion": "1.0", "waybill-user": "guest",
            }  # fmt: skip
            await channel.publish(json.dumps(event).encode(), exchange=jobs.topology.events, routing_key=kind)
    assert await jobs.crons.run("mine")
    found = await jobs.crons.get("mine")
    assert (found.cron, found.enabled, found.run_count) == ("0 0 1 1 *", True, 1)


async def test_times_that_no_clock_shows_stop_no_cron_job(setting: Setting) -> None:
    jobs = setting.jobs
    await jobs.crons.register(CronJob(name="mine", cron="0 0 1 1 *", type="a.b", options={"queue": "q"}))
    claim = {"version": 1, "by": "x", "copy": "x", "until_key": ""}
    async with connect(jobs.uri) as connection:
        channel = await connection.channel()
        for number, (subject, kind, data) in enumerate((
            *(("odd", "cron.registered", {"job": {"name": "odd", "cron": cron, "type": "a.b"}, "now_ms": now_ms})
              for now_ms in (2**63, -(2**63), 253_402_300_799_999) for cron in ("@hourly", "@every 1h")),
            ("mine", "cron.toggled", {"enabled": False, "now_ms": 0}),
            ("mine", "cron.toggled", {"enabled": True, "now_ms": 2**63}),
            ("mine", "cron.claimed", claim | {"until_ms": 2**62}),
            ("mine", "cron.claimed", claim | {"until_ms": 2**46, "until_key": "9999-12-31T23:59:59"}),
            ("mine", "cron.claimed", claim | {"until_ms": 2**46, "until_key": "2026-01-01T00:00:00+00:00"}),
        )):  # fmt: skip
            event = {
                "id": f"evt_{number}", "type": kind, "source": "ojs://x/y", "time": "2026-01-01T00:00:00Z",
                "subject": subject, "data": data, "specversion": "1.0",
            }  # fmt: skip
            properties = BasicProperties(user_id="guest", type=kind)
            await channel.publish(
                json.dumps(event).encode(), exchange=jobs.topology.events, routing_key=kind, properties=properties
            )
    await jobs.crons.register(CronJob(name="often", cron="@every 100ms", type="a.b", options={"queue": "q"}))
    await until(lambda: bool(setting.told("cron.triggered")))
    assert {one.name for one in await jobs.crons.list()} == {"mine", "often"}


async def test_a_cron_job_whose_time_zone_is_missing_hides_no_other(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    crons = setting.jobs.crons
    for name, zone in (("far", "Asia/Tokyo"), ("near", "UTC")):
        await crons.register(CronJob(name=name, cron="0 0 1 1 *", timezone=zone, type="a.b", options={"queue": "q"}))
    for function in (schedule.zone, schedule.read_schedule):
        function.cache_clear()
    monkeypatch.setattr(schedule, "_names", lambda: {"UTC"})
    far, near = await crons.list()
    assert far.next_run_at is None
    assert "not in the IANA time zone database" in (far.warning_text or "")
    assert near.next_run_at is not None
    await crons.remove("far")
    assert [one.name for one in await crons.list()] == ["near"]


async def test_another_users_cron_jobs_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.ojs.coordinator.leader.BEAT_SECONDS", 0.05)
    async with Broker(port=0) as broker, Jobs(broker.uri()) as jobs:
        policy = ControlPolicy()
        async with Coordinator(jobs, queues=["q"], policy=policy) as coordinator:
            await jobs.crons.register(CronJob(name="mine", cron="@daily", type="a.b"))
            monkeypatch.setattr(ControlPolicy, "may_change", lambda *_: False)
            assert await jobs.crons.list() == []
            with pytest.raises(CronNotFound):
                await jobs.crons.get("mine")
            for question in (jobs.crons.pause, jobs.crons.run, jobs.crons.remove):
                with pytest.raises(ControlFailed, match="belongs to another user"):
                    await question("mine")
            assert coordinator.skipped_requests["refused"] == 3
