"""Alerts over gold: what fires, that each opening and closing is told once, and that no notice is lost."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's own documentation uses

from tests.pipeline.own_broker import OwnBroker
from tests.pipeline.test_sink import NOWHERE, Queue
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.spec.identifiers import new_id
from waybill.pipeline import gold_tables
from waybill.pipeline.alert_conditions import Firing, burning, unusual
from waybill.pipeline.alert_rules import AnomalyRule, BurnRule, Rule, RulesError, Window, read_rules
from waybill.pipeline.alert_state import Alert, AlertsError, AlertTable, Notice
from waybill.pipeline.alerts import firing, to_queue, to_webhook, update_alerts
from waybill.pipeline.report.alert_rows import recent_alerts
from waybill.pipeline.tables import Table, Tables, TableStore

NOW = datetime(2026, 5, 20, 12, 0, tzinfo=UTC)
BURN = BurnRule("late", "in_time", 0.99, windows=(Window(3600, 300, 14.4),))
FEWER = AnomalyRule("fewer", "enqueued", "both", least_days=3, days=5)
KEY = ("late", "orders", "order.ship")


@pytest.mark.parametrize(
    ("long", "short", "fires"),
    [
        ((1000, 145), (100, 20), True),
        ((1000, 144), (100, 20), False),  # exactly 14.4 times the budget is not above it
        ((1000, 500), (100, 0), False),  # it is over
        ((1000, 10), (100, 100), False),  # it has only begun
        ((9, 9), (9, 9), False),  # too few jobs
        ((1000, 500), (0, 0), False),
    ],
)
def test_a_budget_burns_if_both_windows_say_so(long: tuple[int, int], short: tuple[int, int], fires: bool) -> None:
    assert (burning(BURN, {3600: long, 300: short}) is not None) == fires


@pytest.mark.parametrize(
    ("now", "former", "distance"),
    [
        (100.0, [100.0, 101.0, 99.0], None),
        (0.0, [100.0, 101.0, 99.0], -10.0),  # a deviation of at least the root of 100
        (300.0, [100.0, 100.0, 100.0, 100.0, 9000.0], 20.0),  # one wild day changes nothing
        (0.0, [100.0, 100.0], None),  # too few days
        (None, [100.0, 101.0, 99.0], None),
        (0.0, [0.0, 0.0, 0.0], None),
    ],
)
def test_an_hour_is_unusual_beside_the_same_hour_of_other_days(
    now: float | None, former: list[float], distance: float | None
) -> None:
    found = unusual(FEWER, now, former)
    assert (None if found is None else round(found.value, 3)) == distance


def test_an_anomaly_may_look_in_one_direction() -> None:
    above = AnomalyRule("more", "run_ms", "above", least_days=3)
    assert unusual(above, 10.0, [1000.0] * 3) is None
    found = unusual(above, 2000.0, [1000.0] * 3)
    assert found is not None
    assert "20.0 deviations above the 1,000" in found.text


def test_each_opening_and_closing_is_told_once(tmp_path: Path) -> None:
    def told(fired: dict[tuple[str, str, str], Firing], minutes: int, *, crash: bool = False) -> list[str]:
        table = AlertTable(tmp_path)
        with table.locked():
            table.change(fired, NOW + timedelta(minutes=minutes))
            notices = table.unsent()
            for notice in notices:
                if not crash:
                    table.sent(notice)
        return [f"{notice.event} {notice.id}" for notice in notices]

    burns = {KEY: Firing(20.0, "it burns")}
    (lost,) = told(burns, 0, crash=True)
    # The same notice once more, with the same id.
    assert told(burns, 1) == [lost]
    assert lost.startswith("opened ")
    assert told(burns, 2) == []
    (closed,) = told({}, 3)
    assert closed.startswith("closed ")
    assert told({}, 4) == []
    (again,) = told(burns, 5)
    assert again != lost
    table = AlertTable(tmp_path)
    with table.locked():
        assert [(one.opened_at, one.closed_at) for one in table.alerts] == [
            (NOW, NOW + timedelta(minutes=3)),
            (NOW + timedelta(minutes=5), None),
        ]
        with (
            pytest.raises(AlertsError, match="another `waybill pipeline alerts` is using"),
            AlertTable(tmp_path).locked(),
        ):
            pass
    table.path.write_bytes(b"no table")
    with pytest.raises(AlertsError, match="cannot be read"), table.locked():
        pass


def activity(spark: SparkSession) -> DataFrame:
    """3,000 jobs in an hour of each of three days, and 1,000 slower ones in that of today."""
    rows = [
        (NOW - timedelta(days=day, minutes=minute), "orders", "order.ship", 1000, 10 if day else 500)
        for day in range(4)
        for minute in (60, 30, 1)
        if day or minute == 30
    ]
    # Beside the hour, and after now: they change nothing.
    rows += [(NOW - timedelta(minutes=61), "orders", "order.ship", 90_000, 1), (NOW, "orders", "order.ship", 90_000, 1)]
    made = spark.createDataFrame(rows, "bucket timestamp, queue string, job_type string, enqueued bigint, ms bigint")
    return made.groupBy("bucket", "queue", "job_type").agg(
        F.sum("enqueued").alias("enqueued"),
        F.lit(90).cast("bigint").alias("completed"),
        F.lit(10).cast("bigint").alias("discarded"),
        F.kll_sketch_agg_bigint("ms").alias("run_sketch"),
    )


def objectives(spark: SparkSession) -> DataFrame:
    """A fifth of the jobs came late."""
    rows = [(NOW - timedelta(minutes=minute), "orders", "order.ship", 100, 80) for minute in (61, 60, 30, 5, 1, 0)]
    return spark.createDataFrame(rows, "bucket timestamp, queue string, job_type string, ended bigint, in_time bigint")


class Gold(TableStore):
    """The two tables that rules look at."""

    def __init__(self, spark: SparkSession) -> None:
        self._tables = {gold_tables.ACTIVITY: activity(spark), gold_tables.OBJECTIVES: objectives(spark)}

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        return self._tables[table]


def test_rules_look_at_gold(spark: SparkSession) -> None:
    slow = AnomalyRule("slow", "run_ms", "above", least_days=3, days=5)
    failing = BurnRule("failing", "completed", 0.999, windows=(Window(3600, 3540, 14.4),))
    rules: list[Rule] = [
        BURN,
        FEWER,
        slow,
        failing,
        AnomalyRule("other", "enqueued", "both", queue="mails", least_days=3),
    ]
    found = firing(rules, activity(spark), objectives(spark), NOW)
    assert {key: round(why.value, 2) for key, why in found.items()} == {
        KEY: 20.0,
        # 1,000 jobs instead of 3,000, whose root is 54.8
        ("fewer", "orders", "order.ship"): -36.51,
        ("slow", "orders", "order.ship"): 490.0,
        ("failing", "orders", "order.ship"): 100.0,
    }
    assert "80 of 400" in found[KEY].text
    assert "40 of 200 in 5m" in found[KEY].text


class Hook:
    """A webhook that fails as often as it is told to."""

    def __init__(self, failures: int) -> None:
        self.got: list[dict[str, object]] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.headers["Webhook-Id"] == body["id"]
                hook.got.append(body)
                self.send_response(500 if len(hook.got) <= failures else 204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/alerts?team=orders"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook(failures=1)
    yield made
    made.close()


def test_notices_become_jobs_and_requests_and_are_not_lost(
    spark: SparkSession, own_broker: OwnBroker, hook: Hook, tmp_path: Path
) -> None:
    gold = Gold(spark)
    with Queue(own_broker.uri) as queue, to_queue(own_broker.uri, queue.name) as push:
        send = [to_webhook(hook.url), push]
        with pytest.raises(AlertsError, match=r"webhook http://127.0.0.1 answered 500"):
            update_alerts(spark, gold, tmp_path, [BURN], NOW, send)
        for minutes in (1, 2):
            update_alerts(spark, gold, tmp_path, [BURN], NOW + timedelta(minutes=minutes), send)
        update_alerts(spark, gold, tmp_path, [], NOW + timedelta(minutes=3), send)
        jobs = queue.jobs()
    first, second, closed = hook.got
    assert first["id"] == second["id"]
    assert (second["event"], closed["event"], closed["rule"]) == ("opened", "closed", "late")
    assert second["alert_id"] == closed["alert_id"]
    assert [(job["id"], job["type"]) for job in jobs] == [
        (second["id"], "pipeline.alert"),
        (closed["id"], "pipeline.alert"),
    ]
    (row,) = recent_alerts(Tables(tmp_path), 5)
    assert (row.rule, row.closed_at) == ("late", NOW.replace(tzinfo=None) + timedelta(minutes=3))


def test_all_notices_go_over_one_connection(own_broker: OwnBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    open_one = BrokerConnection.open

    async def counted(uri: str, *more: Any) -> BrokerConnection:
        opened.append(uri)
        return await open_one(uri, *more)

    monkeypatch.setattr(BrokerConnection, "open", counted)
    alert = Alert(new_id(), "late", "orders", "order.ship", NOW, None, 20.0, "much", None, None)
    notices = [Notice(new_id(), "opened", alert) for _ in range(3)]
    with Queue(own_broker.uri) as queue:
        with to_queue(own_broker.uri, queue.name) as send:
            for notice in notices:
                send(notice)
        assert [job["id"] for job in queue.jobs()] == [notice.id for notice in notices]
    assert opened == [own_broker.uri]
    with pytest.raises(AlertsError, match=r"queue 'q' on 127\.0\.0\.1:1/"), to_queue(NOWHERE, "q") as send:
        send(notices[0])


def test_an_alert_that_is_open_is_told_first(tmp_path: Path) -> None:
    store = Tables(tmp_path)
    assert recent_alerts(store, 5) == []
    table = AlertTable(tmp_path)
    with table.locked():
        table.change({("old", "q", "t"): Firing(1.0, "much"), ("still", "q", "t"): Firing(1.0, "more")}, NOW)
        table.change({("still", "q", "t"): Firing(2.0, "most")}, NOW + timedelta(hours=1))
        table.change(
            {("still", "q", "t"): Firing(2.0, "most"), ("new", "q", "t"): Firing(1.0, "x")}, NOW + timedelta(hours=2)
        )
    assert [(row.rule, row.text) for row in recent_alerts(store, 5)] == [
        ("new", "x"),
        ("still", "most"),
        ("old", "much"),
    ]
    assert [row.rule for row in recent_alerts(store, 2)] == ["new", "still"]
    table.path.write_bytes(b"no Parquet")
    assert recent_alerts(store, 5) == []


def test_rules_are_read_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text("""
        [[rule]]
        name = "late"
        kind = "burn"
        objective = 0.99
        windows = [{long = "1h", short = "5m", burn = 14.4}]
        [[rule]]
        name = "fewer"
        kind = "anomaly"
        measure = "enqueued"
        days = 5
        least_days = 3
    """)
    assert read_rules(path) == [BURN, FEWER]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "rule"),
        ("rule = []", "1 to 200 rules"),
        ('[[rule]]\nname = "a"\nkind = "burn"\nobjective = 1', "rule 'a': objective must be a share"),
        ('[[rule]]\nname = "a"\nkind = "burn"\nobjectiv = 0.9', "objectiv"),
        ('[[rule]]\nname = "a"\nkind = "anomaly"\nmeasure = "love"', "love"),
        ('[[rule]]\nname = "a"\nkind = "anomaly"\nmeasure = "failed"\ndays = 2', "least_days <= days"),
        (
            '[[rule]]\nname = "a"\nkind = "burn"\nobjective = 0.9\nwindows = [{long = "1m", short = "1h", burn = 1}]',
            "short must be shorter",
        ),
    ],
)
def test_bad_rules_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(RulesError, match=message):
        read_rules(path)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://", "http://host:99999/"])
def test_a_webhook_is_a_url(url: str) -> None:
    with pytest.raises(AlertsError, match="a webhook must be a URL"):
        to_webhook(url)
