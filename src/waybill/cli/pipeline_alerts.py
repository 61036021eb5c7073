"""`waybill pipeline alerts`: evaluate rules over the tables, and send notices of alerts."""

from __future__ import annotations

import json
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import click

from waybill.cli.console import Console
from waybill.cli.echo import echo
from waybill.cli.pipeline_session import explained_failures, spark_session
from waybill.cli.target import json_option


@click.command()
@click.option(
    "--data",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Data directory of `waybill pipeline run`.",
)
@click.option(
    "--rules",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with the rules.",
)
@click.option("--push-to", metavar="QUEUE", help="Push each notice to this queue as a job of type pipeline.alert.")
@click.option("--uri", envvar="WAYBILL_URI", help="Broker URL for --push-to.")
@click.option("--webhook", metavar="URL", help="Post each notice as JSON to this URL.")
@click.option(
    "--at", type=click.DateTime(["%Y-%m-%dT%H:%M:%SZ"]), help="Evaluate the rules at this time (UTC). Default: now."
)
@json_option
def alerts(
    data: Path,
    rules: Path,
    push_to: str | None,
    uri: str | None,
    webhook: str | None,
    at: datetime | None,
    as_json: bool,
) -> None:
    """Send a notice when an alert opens and when it closes.

    Run it every minute or so, beside `pipeline run`. Notices that could not be sent are sent by the next run.
    """
    if push_to is not None and uri is None:
        raise click.UsageError("--push-to needs --uri")
    console = Console(stderr=True)
    with explained_failures():
        from waybill.pipeline.alert_rules import read_rules

        wanted = read_rules(rules)
        now = datetime.now(UTC) if at is None else at.replace(tzinfo=UTC)
        with spark_session(console, str(data), "parquet", short=True) as spark, ExitStack() as ending:
            from waybill.pipeline.alerts import to_queue, to_webhook, update_alerts
            from waybill.pipeline.tables import Tables

            send = [] if webhook is None else [to_webhook(webhook)]
            if push_to is not None and uri is not None:
                send.append(ending.enter_context(to_queue(uri, push_to)))
            notices, table = update_alerts(spark, Tables(data), data, wanted, now, send)
    is_open = [alert for alert in table.alerts if alert.closed_at is None]
    if as_json:
        echo(json.dumps({"notices": [notice.as_json() for notice in notices], "open": len(is_open)}))
        return
    for notice in notices:
        alert = notice.alert
        echo(f"{notice.event}  {alert.rule}  {alert.queue}  {alert.job_type}  {alert.text}")
    echo(f"{len(notices)} notices, {len(is_open)} alerts open")
