"""The report as tables in the terminal."""

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from waybill.pipeline.report.alert_rows import lasted
from waybill.pipeline.report.figures import Percentiles, Report, Totals
from waybill.pipeline.report.formatting import clipped, duration, number, ratio, share, span
from waybill.pipeline.report.recommendations import advices


def show(report: Report, console: Console) -> None:
    """Print `report`. Tables without rows are left out."""
    console.print(
        Panel(_summary(report), title=Text("Jobs", style="bold"), subtitle=span(report.start, report.end), expand=False)
    )
    tables = (
        _alerts,
        _job_types,
        _times,
        _objectives,
        _failures,
        _dead_letters,
        _recommendations,
        _workers,
        _malformed,
    )
    for table in (make(report) for make in tables):
        if table.row_count:
            console.print(table)


def _summary(report: Report) -> RenderableType:
    totals = report.totals
    grid = Table.grid(padding=(0, 3))
    for _ in range(4):
        grid.add_column()
    grid.add_row(*_figures(totals))
    counts = Text(
        f"{number(totals.events)} events, {number(totals.attempts)} attempts, {number(totals.failures)} failed, "
        f"{number(totals.retries)} retried, {number(totals.recovered)} jobs completed after a retry",
        style="dim",
    )
    twice = Text(
        f"{number(totals.redelivered)} attempts delivered more than once, "
        f"{number(totals.repeated)} jobs completed more than once, {number(totals.malformed)} events in quarantine",
        style="dim",
    )
    if totals.ahead:
        twice.append(f", {number(totals.ahead)} events ahead of this machine's clock, not shown")
    return Group(grid, Text(), _waits(totals), counts, twice)


def _figures(totals: Totals) -> list[Text]:
    shown = [
        (number(totals.pushed), "pushed", "bold"),
        (number(totals.completed), "completed", "bold green"),
        (number(totals.discarded), "discarded", "bold red" if totals.discarded else "bold"),
        (number(totals.open), "open", "bold yellow" if totals.open else "bold"),
    ]
    return [Text.assemble((figure, style), " ", name) for figure, name, style in shown]


def _waits(totals: Totals) -> Text:
    return Text.assemble(
        "queue wait ",
        (_three(totals.queue_wait), "cyan"),
        "   run time ",
        (_three(totals.run), "cyan"),
        "  (p50 / p95 / p99)",
    )


def _alerts(report: Report) -> Table:
    table = _table("Alerts", "rule", "queue", "job type", "open")
    table.add_column("because", style="dim")
    for row in report.alerts:
        style = "bold red" if row.closed_at is None else ""
        names = (_name(row.queue), _name(row.job_type), Text(lasted(row), style))
        table.add_row(_name(row.rule), *names, _one_line(row.text))
    return table


def _job_types(report: Report) -> Table:
    table = _table("By job type", "job type", "queue")
    for heading in ("pushed", "completed", "after retry", "discarded", "open", "failures"):
        table.add_column(heading, justify="right")
    for row in report.job_types:
        counts = (row.pushed, row.completed, row.recovered, row.discarded, row.open, row.failures)
        table.add_row(_name(row.job_type), _name(row.queue), *map(_figure, counts))
    return table


def _times(report: Report) -> Table:
    table = _table("Times", "job type", "queue")
    for heading in ("queue wait", "run time"):
        table.add_column(f"{heading}\np50 / p95 / p99", justify="right")
    for row in report.job_types:
        table.add_row(_name(row.job_type), _name(row.queue), _three(row.queue_wait), _three(row.run))
    return table


def _objectives(report: Report) -> Table:
    table = _table("Done in time", "job type", "queue")
    for heading in ("objective", "ended", "in time", "share"):
        table.add_column(heading, justify="right")
    for row in report.job_types:
        if row.ended:
            counts = (number(row.ended), number(row.in_time), share(row.in_time, row.ended))
            table.add_row(_name(row.job_type), _name(row.queue), duration(row.target_ms), *counts)
    return table


def _failures(report: Report) -> Table:
    table = _table("Failed attempts", "job type", "error")
    table.add_column("failed", justify="right")
    table.add_column("retried", justify="right")
    table.add_column("for example", style="dim", max_width=60)
    for row in report.failures:
        example = _example(row.example_message)
        counts = (number(row.failed), number(row.retried))
        table.add_row(_name(row.job_type), _name(row.error_type), *counts, example)
    return table


def _dead_letters(report: Report) -> Table:
    table = _table("Dead letters", "reason", "job types")
    table.add_column("jobs", justify="right")
    table.add_column("share", justify="right")
    table.add_column("for example", style="dim", max_width=60)
    total = sum(row.jobs for row in report.dead_letters)
    for row in report.dead_letters:
        counts = (number(row.jobs), share(row.jobs, total))
        job_types = Text(", ").join(map(_name, row.job_types))
        table.add_row(_name(row.reason), job_types, *counts, _example(row.example_message))
    return table


def _recommendations(report: Report) -> Table:
    table = _table("Recommendations", "job type", "set")
    table.add_column("to", justify="right")
    table.add_column("because", style="dim")
    for row in report.recommendations:
        for name, advice in advices(row):
            table.add_row(_name(row.job_type), name, number(advice.value), Text(advice.evidence))
    return table


def _workers(report: Report) -> Table:
    table = _table("Workers", "worker")
    for heading in ("attempts", "completed", "failed", "busy", "utilisation"):
        table.add_column(heading, justify="right")
    for row in report.workers:
        counts = (row.attempts, row.completed, row.failed)
        table.add_row(_name(row.worker_id), *map(number, counts), duration(row.busy_ms), ratio(row.utilisation))
    return table


def _malformed(report: Report) -> Table:
    table = _table("Quarantine", "reason")
    table.add_column("events", justify="right")
    for reason, count in report.malformed_reasons.items():
        table.add_row(_one_line(reason), number(count))
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    for heading in headings:
        table.add_column(heading)
    return table


def _figure(count: float) -> Text:
    """A number, which wraps in a narrow terminal and is never cut."""
    return Text(number(count), overflow="fold")


def _three(values: Percentiles | None) -> str:
    if values is None:
        return duration(None)
    return " / ".join(duration(value) for value in (values.p50, values.p95, values.p99))


def _one_line(text: str | None) -> Text:
    """A message as plain text: texts of jobs are not markup."""
    return Text(_printable(" ".join((text or "").split())))


def _example(text: str | None) -> Text:
    """A message, cut to the width that the other columns leave: a column with `no_wrap` would take theirs."""
    example = _one_line(text)
    example.no_wrap, example.overflow = True, "ellipsis"
    return example


def _name(text: str) -> Text:
    """A name as plain text, cut to a readable length."""
    return Text(_printable(clipped(text)))


def _printable(text: str) -> str:
    """Remove control characters, which a terminal would execute."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
