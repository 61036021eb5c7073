"""The charts of the page, as SVG text. Colours and type come from the page's style sheet, for light and for dark.

Marks with a figure have a `<title>`, which browsers show as a tooltip.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Final

from waybill.pipeline.report.figures import Bucket, JobType, Percentiles
from waybill.pipeline.report.formatting import clipped, duration, moment, number, share
from waybill.pipeline.report.scales import LinearScale, LogScale, linear, logarithmic

_LEFT: Final = 58.0
_RIGHT: Final = 12.0
_TOP: Final = 12.0
_AXIS_HEIGHT: Final = 28.0
_LABEL_WIDTH: Final = 92.0
_LABEL_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_DAY_S: Final = 86_400
_BAR_MIN: Final = 1.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Canvas:
    """The size of a chart in its own units: pixels if the page is wide enough."""

    width: float
    plot_height: float


WIDE: Final = Canvas(1104, 230)
HALF: Final = Canvas(520, 190)


@dataclass(frozen=True)
class Segment:
    """One part of a horizontal bar: the value, the colour (a CSS class), and the meaning."""

    value: int
    kind: str
    meaning: str


@dataclass(frozen=True)
class BarRow:
    """A horizontal bar with its name above, a figure at the right, and a line of small print."""

    name: str
    figure: str
    segments: Sequence[Segment]
    detail: str = ""


class _TimeAxis:
    """Places buckets from left to right."""

    def __init__(self, buckets: Sequence[Bucket], seconds: int, canvas: Canvas) -> None:
        self.buckets = buckets
        self.seconds = seconds
        self.canvas = canvas
        self.width = (canvas.width - _LEFT - _RIGHT) / max(1, len(buckets))
        self.bottom = _TOP + canvas.plot_height

    def left(self, index: int) -> float:
        return _LEFT + self.width * index

    def centre(self, index: int) -> float:
        return _LEFT + self.width * (index + 0.5)

    def labels(self) -> str:
        """Times at round moments, as many as fit."""
        total = self.seconds * len(self.buckets)
        room = (self.canvas.width - _LEFT) // _LABEL_WIDTH
        fitting = (step for step in _LABEL_STEPS_S if step >= self.seconds and total / step <= room)
        step = next(fitting, _DAY_S * max(1, math.ceil(total / (_DAY_S * room))))
        marks = []
        for index, bucket in enumerate(self.buckets):
            if _seconds_since_epoch(bucket.start) % step < self.seconds:
                x = self.left(index)
                label = moment(bucket.start, timedelta(seconds=step))
                marks.append(
                    f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{self.bottom}" y2="{self.bottom + 5}"/>'
                )
                marks.append(
                    f'<text class="axis" x="{x:.1f}" y="{self.bottom + 20}" text-anchor="middle">{label}</text>'
                )
        return "".join(marks)

    def hover(self, describe: Callable[[Bucket], str]) -> str:
        """An invisible column over each bucket, with its figures as tooltip."""
        height = self.canvas.plot_height
        return "".join(
            f'<rect class="hover" x="{self.left(index):.2f}" y="{_TOP}" width="{self.width:.2f}" height="{height}">'
            f"<title>{escape(describe(bucket))}</title></rect>"
            for index, bucket in enumerate(self.buckets)
        )


def throughput(buckets: Sequence[Bucket], seconds: int) -> str:
    """Pushed jobs per second as a line over columns of completed jobs and failed attempts."""
    axis = _TimeAxis(buckets, seconds, WIDE)
    largest = max((max(bucket.enqueued, bucket.completed + bucket.failed) for bucket in buckets), default=0)
    scale = linear(largest / seconds, axis.bottom, _TOP)
    gap = min(2.0, axis.width * 0.2)
    bars = []
    for index, bucket in enumerate(buckets):
        x, width = axis.left(index) + gap / 2, max(_BAR_MIN, axis.width - gap)
        middle = scale(bucket.completed / seconds)
        bars.append(_column(x, width, axis.bottom, middle, "completed"))
        bars.append(_column(x, width, middle, scale((bucket.completed + bucket.failed) / seconds), "failed"))
    pushed = [(axis.centre(index), scale(bucket.enqueued / seconds)) for index, bucket in enumerate(buckets)]

    def describe(bucket: Bucket) -> str:
        return (
            f"{bucket.start:%d %b %H:%M:%S} UTC\npushed {number(bucket.enqueued / seconds)}/s\n"
            f"completed {number(bucket.completed / seconds)}/s\nfailed {number(bucket.failed / seconds)}/s"
        )

    grid = _grid(axis, scale, lambda value: f"{number(value)}/s")
    line = f'<path class="line pushed" d="{_path(pushed)}"/>'
    return _svg("Throughput over time", axis, grid + "".join(bars) + line + axis.labels() + axis.hover(describe))


def percentile_lines(
    buckets: Sequence[Bucket], seconds: int, pick: Callable[[Bucket], Percentiles | None], name: str
) -> str:
    """The median, 95th and 99th percentile over time, on a logarithmic scale; buckets without any break the lines."""
    axis = _TimeAxis(buckets, seconds, HALF)
    known = [values for values in map(pick, buckets) if values is not None]
    scale = logarithmic(
        min((values.p50 for values in known), default=1),
        max((values.p99 for values in known), default=10),
        axis.bottom,
        _TOP,
    )
    marks = []
    for run in _runs(buckets, pick):
        points = {
            rank: [(axis.centre(index), scale(getattr(values, rank))) for index, values in run]
            for rank in ("p50", "p95", "p99")
        }
        outline = points["p99"] + points["p50"][::-1]
        marks.append(f'<path class="band" d="{_path(outline)}Z"/>')
        for rank in ("p99", "p95", "p50"):
            marks.append(f'<path class="line {rank}" d="{_path(points[rank])}"/>')
            if len(run) == 1:
                x, y = points[rank][0]
                marks.append(f'<circle class="dot {rank}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')

    def describe(bucket: Bucket) -> str:
        values = pick(bucket)
        head = f"{bucket.start:%d %b %H:%M:%S} UTC"
        if values is None:
            return f"{head}\nnothing"
        return f"{head}\np99 {duration(values.p99)}\np95 {duration(values.p95)}\np50 {duration(values.p50)}"

    body = _grid(axis, scale, duration) + "".join(marks) + axis.labels() + axis.hover(describe)
    return _svg(f"{name} percentiles over time", axis, body)


def outcome_rows(job_types: Sequence[JobType]) -> list[BarRow]:
    """A bar for each job type: how its jobs ended."""
    rows = []
    for row in job_types:
        segments = (
            Segment(row.completed - row.recovered, "completed", "completed on the first attempt"),
            Segment(row.recovered, "recovered", "completed after a retry"),
            Segment(row.discarded, "failed", "discarded"),
            Segment(row.open, "open", "open"),
        )
        total = sum(segment.value for segment in segments)
        detail = f"{number(row.failures)} failed attempts, {number(row.retries)} retries"
        figure = f"{number(total)} jobs, {share(row.discarded, total)} discarded"
        rows.append(BarRow(row.job_type, figure, segments, detail))
    return rows


def bars(rows: Sequence[BarRow], name: str, *, to_full_width: bool) -> str:
    """Horizontal bars, one below the other: all of full width, or in proportion to the largest."""
    largest = max((sum(segment.value for segment in row.segments) for row in rows), default=1) or 1
    items = []
    for row in rows:
        name_shown = clipped(row.name)
        total = sum(segment.value for segment in row.segments)
        scale = 100.0 / ((total if to_full_width else largest) or 1)
        parts = "".join(
            f'<span class="part {segment.kind}" style="width:{max(0.4, segment.value * scale):.3f}%" '
            f'title="{escape(f"{name_shown}: {number(segment.value)} {segment.meaning}")}"></span>'
            for segment in row.segments
            if segment.value
        )
        detail = f'<span class="detail" title="{escape(row.detail)}">{escape(row.detail)}</span>' if row.detail else ""
        items.append(
            f'<li><span class="name">{escape(name_shown)}</span><span class="figure">{escape(row.figure)}</span>'
            f'<span class="bar">{parts}</span>{detail}</li>'
        )
    return f'<ul class="bars" aria-label="{escape(name)}">{"".join(items)}</ul>'


def _svg(name: str, axis: _TimeAxis, body: str) -> str:
    height = axis.bottom + _AXIS_HEIGHT
    return (
        f'<svg viewBox="0 0 {axis.canvas.width:.0f} {height:.0f}" role="img" aria-label="{escape(name)}">{body}</svg>'
    )


def _grid(axis: _TimeAxis, scale: LinearScale | LogScale, label: Callable[[float], str]) -> str:
    right = axis.canvas.width - _RIGHT
    return "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{scale(value):.1f}" y2="{scale(value):.1f}"/>'
        f'<text class="axis" x="{_LEFT - 8}" y="{scale(value) + 4:.1f}" text-anchor="end">{escape(label(value))}</text>'
        for value in scale.ticks
    )


def _column(x: float, width: float, bottom: float, top: float, kind: str) -> str:
    height = bottom - top
    if height <= 0:
        return ""
    radius = min(2.0, width / 3, height)
    return (
        f'<path class="{kind}" d="M{x:.2f} {bottom:.1f}V{top + radius:.2f}q0 {-radius:.2f} {radius:.2f} {-radius:.2f}'
        f'h{width - 2 * radius:.2f}q{radius:.2f} 0 {radius:.2f} {radius:.2f}V{bottom:.1f}Z"/>'
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "".join(f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(points))


def _runs(
    buckets: Sequence[Bucket], pick: Callable[[Bucket], Percentiles | None]
) -> list[list[tuple[int, Percentiles]]]:
    """Runs of adjacent buckets that have values, with their positions."""
    runs: list[list[tuple[int, Percentiles]]] = [[]]
    for index, bucket in enumerate(buckets):
        values = pick(bucket)
        if values is not None:
            runs[-1].append((index, values))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _seconds_since_epoch(time: datetime) -> int:
    """Spark returns naive times in the session's zone, which is UTC."""
    return int((time.replace(tzinfo=UTC) - _EPOCH).total_seconds())
