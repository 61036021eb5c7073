"""Prometheus metrics with the names of RabbitMQ's plugin, so that its dashboards work.

    /metrics              the node as a whole
    /metrics/per-object   the same, and each queue, connection, channel and exchange
    /metrics/detailed     the families of `family=...`, for the virtual hosts of `vhost=...`

`/health/live` and `/health/ready` are for orchestrators. None of these needs a login: restrict access to the port.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Final
from urllib.parse import parse_qsl

from waybill import __version__
from waybill.management.api_context import ApiContext
from waybill.management.call import Answer, Call
from waybill.management.errors import bad_request
from waybill.management.long_answers import LongAnswers
from waybill.management.metric_families import FAMILIES, Family
from waybill.management.node_metrics import node_metrics
from waybill.management.router import Route

METRICS: Final = ("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
BATCH: Final = 50
LINES: Final = 500
PREFIX: Final = "rabbitmq_"
DETAILED: Final = "rabbitmq_detailed_"
PER_OBJECT: Final = (
    "queue_coarse_metrics",
    "queue_metrics",
    "queue_delivery_metrics",
    "queue_exchange_metrics",
    "connection_coarse_metrics",
    "connection_metrics",
    "channel_metrics",
    "channel_exchange_metrics",
    "exchange_metrics",
)
SUMMED: Final = ("queue_metrics", "channel_metrics", "connection_metrics")
"""Families whose sums are in `/metrics`, as in RabbitMQ."""
TEXT: Final = ("Content-Type", "text/plain; charset=utf-8")


class MetricRoutes:
    """The routes for metrics. Their paths are not below `/api`."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "//metrics", self._all, is_open=True),
            Route("GET", "//metrics/broker", self._all, is_open=True),
            Route("GET", "//metrics/per-object", self._per_object, is_open=True),
            Route("GET", "//metrics/detailed", self._detailed, is_open=True),
            Route("GET", "//health/live", self._live, is_open=True),
            Route("GET", "//health/ready", self._ready, is_open=True),
        ]

    async def _all(self, call: Call) -> Answer:
        lines = [*node_metrics(self._context, __version__)]
        there = {line.split()[2] for line in lines if line.startswith("# TYPE")}
        for name in SUMMED:
            lines += await self._sums(call.long_answers, FAMILIES[name], there)
        return Answer(200, octets=_encoded(lines), headers=[METRICS])

    async def _sums(self, long_answers: LongAnswers, family: Family, there: set[str]) -> list[str]:
        """Return the sums of a family over all objects, without metrics that were written before."""
        sums: list[float] = [0] * len(family.metrics)
        objects = family.objects(self._context, None)
        while batch := list(islice(objects, BATCH)):
            for _, values in batch:
                sums = [one + value for one, value in zip(sums, values, strict=True)]
            await long_answers.step()
        lines: list[str] = []
        for (name, kind, text), value in zip(family.metrics, sums, strict=True):
            if PREFIX + name not in there:
                there.add(PREFIX + name)
                lines += [*_head(PREFIX + name, kind, text), f"{PREFIX}{name} {value}"]
        return lines

    async def _per_object(self, call: Call) -> Answer:
        return _metrics(self._of_objects(call.long_answers))

    async def _of_objects(self, long_answers: LongAnswers) -> AsyncIterator[list[str]]:
        yield list(node_metrics(self._context, __version__, is_per_object=True))
        for name in PER_OBJECT:
            async for lines in self._lines(long_answers, FAMILIES[name], PREFIX, None):
                yield lines

    async def _detailed(self, call: Call) -> Answer:
        names, hosts = _several(call, "family"), _several(call, "vhost")
        unknown = [name for name in names if name not in FAMILIES]
        if unknown:
            raise bad_request(f"unknown family {unknown[0][:100]}; there are {', '.join(FAMILIES)}")
        return _metrics(self._of_families(call.long_answers, list(dict.fromkeys(names)), hosts or None))

    async def _of_families(
        self, long_answers: LongAnswers, names: list[str], hosts: list[str] | None
    ) -> AsyncIterator[list[str]]:
        for name in names:
            family = FAMILIES[name]
            async for lines in self._lines(
                long_answers, family, "rabbitmq_cluster_" if family.is_cluster_wide else DETAILED, hosts
            ):
                yield lines

    async def _lines(
        self, long_answers: LongAnswers, family: Family, prefix: str, hosts: list[str] | None
    ) -> AsyncIterator[list[str]]:
        """Yield the lines of a family, metric by metric, made a few objects at a time."""
        rows: list[tuple[str, tuple[float, ...]]] = []
        objects = family.objects(self._context, hosts)
        while batch := list(islice(objects, BATCH)):
            rows += batch
            await long_answers.step()
        for column, (name, kind, text) in enumerate(family.metrics):
            yield list(_head(prefix + name, kind, text))
            for start in range(0, len(rows), LINES):
                yield [f"{prefix}{name}{{{labels}}} {row[column]}" for labels, row in rows[start : start + LINES]]
                await long_answers.step()

    async def _live(self, _call: Call) -> Answer:
        return Answer(200, octets=b"alive\n", headers=[TEXT])

    async def _ready(self, _call: Call) -> Answer:
        """Report whether clients can connect, and messages can be stored."""
        if not self._context.broker.is_serving:
            return Answer(503, octets=b"stopping\n", headers=[TEXT])
        alarm = self._context.node.alarm
        return Answer(
            200, octets=f"ready, but publishers wait: {alarm}\n".encode() if alarm else b"ready\n", headers=[TEXT]
        )


def _several(call: Call, name: str) -> list[str]:
    """Return the values of a repeated query parameter."""
    fields = parse_qsl(call.request.raw_query.decode("latin-1"), keep_blank_values=True)
    return [value for field, value in fields if field == name]


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    yield f"# HELP {name} {text}"


def _encoded(lines: list[str]) -> bytes:
    return "\n".join((*lines, "")).encode(errors="replace")


def _metrics(parts: AsyncIterator[list[str]]) -> Answer:
    """Send lines as they are made: 20,000 queues have 40 MB of them."""

    async def pieces() -> AsyncIterator[bytes]:
        async for lines in parts:
            yield _encoded(lines)

    return Answer(200, stream=pieces(), headers=[METRICS])
