"""The report as one HTML page without scripts and requests, with light and dark colours."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Final

from waybill import __version__
from waybill.pipeline.report import charts
from waybill.pipeline.report.alert_rows import AlertRow, lasted
from waybill.pipeline.report.charts import BarRow, Segment
from waybill.pipeline.report.figures import ErrorTotal, Failure, JobType, Percentiles, Report, WorkerShare
from waybill.pipeline.report.formatting import clipped, duration, number, ratio, share, span
from waybill.pipeline.report.recommendations import Recommendation, advices

_BARS_MAX: Final = 12
_NAMES_MAX: Final = 6
_CELL_MAX: Final = 400


def render(report: Report, made_at: datetime) -> str:
    """The page as text. `made_at` is shown at its foot."""
    style = files("waybill.pipeline.report").joinpath("page.css").read_text(encoding="utf-8")
    sections = (
        _header(report),
        _tiles(report),
        _alerts(report.alerts),
        _timeline(report),
        _outcomes(report),
        _job_types(report.job_types),
        _recommendations(report.recommendations),
        _workers(report.workers),
        _quarantine(report.malformed_reasons),
    )
    made = f"{made_at.astimezone(UTC):%d %b %Y %H:%M:%S} UTC"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><title>Waybill: jobs report</title>'
        f"<style>{style}</style></head><body><main>{''.join(sections)}</main>"
        f"<footer>Made {made} by waybill {escape(__version__)}. All times are UTC.</footer></body></html>\n"
    )


def _header(report: Report) -> str:
    totals = report.totals
    ended = totals.completed + totals.discarded
    health = (
        f"{share(totals.completed, ended)} of the jobs that ended were completed" if ended else "No job has ended yet"
    )
    return (
        f'<header><p class="brand">Waybill</p><h1>Jobs report</h1>'
        f'<p class="lead">{escape(health)}. <span class="span">{escape(span(report.start, report.end))}</span></p>'
        "</header>"
    )


def _tiles(report: Report) -> str:
    totals = report.totals
    tiles = [
        ("Pushed", number(totals.pushed), f"{number(totals.open)} still open", ""),
        ("Completed", number(totals.completed), f"{number(totals.recovered)} of them after a retry", "good"),
        (
            "Discarded",
            number(totals.discarded),
            f"{share(totals.discarded, totals.jobs)} of all jobs",
            "bad" if totals.discarded else "",
        ),
        ("Failed attempts", number(totals.failures), f"{number(totals.retries)} retried", ""),
        ("Queue wait", _median(totals.queue_wait), _tail(totals.queue_wait), ""),
        ("Run time", _median(totals.run), _tail(totals.run), ""),
    ]
    cells = "".join(
        f'<div class="tile {kind}"><dt>{name}</dt><dd>{escape(figure)}</dd><p>{escape(note)}</p></div>'
        for name, figure, note, kind in tiles
    )
    twice = (
        f"{number(totals.events)} events read, {number(totals.malformed)} in quarantine. "
        f"{number(totals.redelivered)} attempts were delivered more than once, "
        f"{number(totals.repeated)} jobs completed more than once."
    )
    if totals.ahead:
        twice += (
            f" {number(totals.ahead)} events are more than an hour ahead of this machine's clock and are not shown."
        )
    return f'<dl class="tiles">{cells}</dl><p class="note">{escape(twice)}</p>'


def _alerts(rows: list[AlertRow]) -> str:
    if not rows:
        return ""
    body = [(row.rule, row.queue, row.job_type, lasted(row), row.text) for row in rows]
    opened = sum(row.closed_at is None for row in rows)
    head = ("Rule", "Queue", "Job type", "Open", "Because")
    return _card("Alerts", f"{number(opened)} open", _table(head, body, texts=5), "wide")


def _timeline(report: Report) -> str:
    if not report.timeline:
        return ""
    buckets, seconds = report.timeline, report.bucket_seconds
    every = f"by {duration(seconds * 1000)}"
    flow = _legend(("pushed line", "pushed"), ("completed", "completed"), ("failed", "failed attempts"))
    ranks = _legend(("p50 line", "p50"), ("p95 line", "p95"), ("p99 line", "p99"))
    waits = charts.percentile_lines(buckets, seconds, lambda bucket: bucket.queue_wait, "Queue wait")
    runs = charts.percentile_lines(buckets, seconds, lambda bucket: bucket.run, "Run time")
    return (
        _card("Throughput", every, flow + charts.throughput(buckets, seconds), "wide")
        + _card("Queue wait", f"from available to started, {every}", ranks + waits)
        + _card("Run time", f"of one attempt, {every}", ranks + runs)
    )


def _outcomes(report: Report) -> str:
    outcome_legend = _legend(
        ("completed", "completed on the first attempt"),
        ("recovered", "after a retry"),
        ("failed", "discarded"),
        ("open", "open"),
    )
    outcomes = charts.bars(charts.outcome_rows(report.job_types), "Outcomes by job type", to_full_width=True)
    failures = _failure_rows(report.errors, report.failures)
    dead = [
        BarRow(
            row.reason,
            f"{number(row.jobs)} ({share(row.jobs, report.totals.discarded)})",
            (Segment(row.jobs, "failed", "jobs"),),
            f"{', '.join(map(clipped, row.job_types))}: {clipped(row.example_message)}",
        )
        for row in report.dead_letters[:_BARS_MAX]
    ]
    failure_legend = _legend(("recovered", "retried"), ("failed", "given up"))
    failure_bars = failure_legend + charts.bars(failures, "Failed attempts by error", to_full_width=False)
    dead_bars = charts.bars(dead, "Dead letters by reason", to_full_width=False)
    return (
        (_card("Outcomes", "by job type", outcome_legend + outcomes, "wide") if report.job_types else "")
        + _card("Failed attempts", "by error", failure_bars if failures else _nothing("No attempt failed."))
        + _card("Dead letters", "by reason", dead_bars if dead else _nothing("No job was discarded."))
    )


def _failure_rows(errors: list[ErrorTotal], failures: list[Failure]) -> list[BarRow]:
    """A bar for each error, the most frequent first, with its job types and an example."""
    by_error: dict[str, list[Failure]] = {}
    for failure in failures:
        by_error.setdefault(failure.error_type, []).append(failure)
    rows = []
    for error in errors[:_BARS_MAX]:
        parts = by_error.get(error.error_type, [])
        given_up = error.failed - error.retried
        segments = (Segment(error.retried, "recovered", "retried"), Segment(given_up, "failed", "given up"))
        where = ", ".join(f"{clipped(part.job_type)} {number(part.failed)}" for part in parts[:_NAMES_MAX])
        example = clipped(next((part.example_message for part in parts if part.example_message), ""))
        figure = f"{number(error.failed)}, {number(error.retried)} retried" if error.retried else number(error.failed)
        rows.append(BarRow(error.error_type, figure, segments, f"{where}: {example}" if example else where))
    return rows


def _job_types(rows: list[JobType]) -> str:
    if not rows:
        return ""
    head = (
        "Job type",
        "Queue",
        "Pushed",
        "Completed",
        "Discarded",
        "Retries",
        "In time",
        "Wait p50",
        "p95",
        "p99",
        "Run p50",
        "p95",
        "p99",
    )
    body = [
        (
            row.job_type,
            row.queue,
            *map(number, (row.pushed, row.completed, row.discarded, row.retries)),
            share(row.in_time, row.ended),
            *_three(row.queue_wait),
            *_three(row.run),
        )
        for row in rows
    ]
    return _card("Job types", "with percentiles", _table(head, body, texts=2), "wide")


def _recommendations(rows: list[Recommendation]) -> str:
    body = [
        (row.job_type, name, advice.evidence, number(advice.value)) for row in rows for name, advice in advices(row)
    ]
    if not body:
        return ""
    head = ("Job type", "Setting", "Because", "Recommended")
    return _card("Recommendations", "with their evidence", _table(head, body, texts=3), "wide")


def _workers(rows: list[WorkerShare]) -> str:
    if not rows:
        return ""
    total = sum(row.attempts for row in rows)
    body = [
        (
            row.worker_id,
            *map(number, (row.attempts, row.completed, row.failed)),
            share(row.attempts, total),
            duration(row.busy_ms),
            ratio(row.utilisation),
        )
        for row in rows
    ]
    head = ("Worker", "Attempts", "Completed", "Failed", "Share", "Busy", "Utilisation")
    return _card("Workers", "with the work of each", _table(head, body, texts=1), "wide")


def _quarantine(reasons: dict[str, int]) -> str:
    if not reasons:
        return ""
    body = [(reason, number(count)) for reason, count in reasons.items()]
    return _card("Quarantine", "events that could not be read", _table(("Reason", "Events"), body, texts=1), "wide")


def _card(title: str, subtitle: str, body: str, kind: str = "") -> str:
    return f'<section class="card {kind}"><h2>{escape(title)} <small>{escape(subtitle)}</small></h2>{body}</section>'


def _legend(*entries: tuple[str, str]) -> str:
    return (
        '<p class="legend">' + "".join(f'<span><i class="{kind}"></i>{name}</span>' for kind, name in entries) + "</p>"
    )


def _nothing(text: str) -> str:
    return f'<p class="nothing">{text}</p>'


def _table(head: Sequence[str], body: Sequence[Sequence[str]], texts: int) -> str:
    """A table whose first `texts` columns are text and the others figures."""
    kinds = ["text" if index < texts else "figure" for index in range(len(head))]
    headings = "".join(f'<th class="{kind}">{escape(cell)}</th>' for kind, cell in zip(kinds, head, strict=True))
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}">{escape(clipped(cell, _CELL_MAX))}</td>' for kind, cell in zip(kinds, row, strict=True)
        )
        + "</tr>"
        for row in body
    )
    return f'<div class="scroll"><table><thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table></div>'


def _three(values: Percentiles | None) -> tuple[str, str, str]:
    if values is None:
        return duration(None), duration(None), duration(None)
    return duration(values.p50), duration(values.p95), duration(values.p99)


def _median(values: Percentiles | None) -> str:
    return duration(values.p50 if values else None)


def _tail(values: Percentiles | None) -> str:
    return f"median; p95 {duration(values.p95)}, p99 {duration(values.p99)}" if values else "no job was started"
