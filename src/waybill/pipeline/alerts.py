"""Evaluates the rules for alerts over gold, and sends a notice for each alert that opens or closes."""

import http.client
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession

from waybill.ojs import Jobs, JobsError, NewJob, Topology
from waybill.pipeline import gold_tables
from waybill.pipeline.alert_conditions import Firing, burning, unusual
from waybill.pipeline.alert_rules import BurnRule, Rule
from waybill.pipeline.alert_state import AlertsError, AlertTable, Key, Notice
from waybill.pipeline.broker_errors import BROKER_ERRORS, explained
from waybill.pipeline.http_connection import http_connection
from waybill.pipeline.tables import TableStore
from waybill.pipeline.transforms.alert_inputs import hours, window_sums

JOB_TYPE: Final = "pipeline.alert"
"""The type of the jobs for notices. Their argument is the notice."""
_TIMEOUT_S: Final = 10.0
_MULTIPLE_CHOICES: Final = 300

Send: TypeAlias = Callable[[Notice], None]


def firing(rules: Sequence[Rule], activity: DataFrame, objectives: DataFrame, now: datetime) -> dict[Key, Firing]:
    """The rules that fire at `now`, by rule, queue and job type."""
    second = int(now.timestamp())
    found: dict[Key, Firing] = {}
    for rule in rules:
        if isinstance(rule, BurnRule):
            burned = window_sums(rule, activity, objectives, second)
            fired = {key: burning(rule, sums) for key, sums in burned.items()}
        else:
            fired = {key: unusual(rule, at, former) for key, (at, former) in hours(rule, activity, second).items()}
        found |= {(rule.name, *key): why for key, why in fired.items() if why is not None}
    return found


def update_alerts(
    spark: SparkSession, store: TableStore, directory: Path, rules: Sequence[Rule], now: datetime, send: Sequence[Send]
) -> tuple[list[Notice], AlertTable]:
    """Evaluate the rules, store the changes, and send the notices. Returns the sent notices.

    Raises AlertsError. A notice that could not be sent stays in the table, and the next call sends it.
    """
    table = AlertTable(directory)
    with table.locked():
        fired = firing(rules, store.read(spark, gold_tables.ACTIVITY), store.read(spark, gold_tables.OBJECTIVES), now)
        table.change(fired, now)
        notices = table.unsent()
        for notice in notices:
            for one in send:
                one(notice)
            table.sent(notice)
    return notices, table


@contextmanager
def to_queue(uri: str, queue: str, topology: Topology | None = None) -> Iterator[Send]:
    """Push notices as jobs over one connection. A job has the id of its notice, so handlers can detect repetitions."""
    jobs = Jobs(uri, topology=topology, create_queues=True)

    def send(notice: Notice) -> None:
        try:
            jobs.sync.push_job(NewJob(JOB_TYPE, [notice.as_json()], {"queue": queue}, id=notice.id))
        except (*BROKER_ERRORS, JobsError) as problem:
            raise AlertsError(explained(f"cannot push an alert to queue {queue!r} on", uri, problem)) from None

    try:
        yield send
    finally:
        # `send` has reported the failure.
        with suppress(*BROKER_ERRORS, JobsError):
            jobs.sync.close()


def to_webhook(url: str) -> Send:
    """Post a notice as JSON; any answer but 2xx is an error. Raises AlertsError unless the URL is HTTP or HTTPS."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1:
        raise AlertsError("a webhook must be a URL such as https://example.com/alerts")
    host, where = parts.hostname, f"{parts.scheme}://{parts.hostname}"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def send(notice: Notice) -> None:
        connection = http_connection(parts.scheme, host, port, _TIMEOUT_S)
        headers = {"Content-Type": "application/json", "Webhook-Id": notice.id}
        try:
            connection.request("POST", target, json.dumps(notice.as_json()).encode(), headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as problem:
            raise AlertsError(f"webhook {where}: {problem or type(problem).__name__}") from None
        finally:
            connection.close()
        if not 200 <= status < _MULTIPLE_CHOICES:
            raise AlertsError(f"webhook {where} answered {status}")

    return send
