"""Figures with their rates and the requested history, in RabbitMQ's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from waybill.management.errors import bad_request
from waybill.management.history import EMPTY, Indexes, Row, Series
from waybill.management.statistic_kinds import (
    CHANNELS,
    EXCHANGES,
    LENGTHS,
    QUEUE_COUNTERS,
    QUEUES,
    TOTALS,
    VIRTUAL_HOSTS,
    Kind,
)

SAMPLES_MAX: Final = 2000
AGE_MAX: Final = 366 * 86_400


class Span(NamedTuple):
    """The age and the increment of requested samples, in seconds."""

    age: int
    step: int


class Spans(NamedTuple):
    """The requested histories: queue lengths, message rates, octets, the node."""

    lengths: Span | None = None
    msg_rates: Span | None = None
    data_rates: Span | None = None
    node_stats: Span | None = None


NO_SPANS: Final = Spans()


def spans_of(query: Mapping[str, str]) -> Spans:
    """Read the query; values that are not numbers are ignored, as in RabbitMQ. Raises Refused."""
    if not any(name.endswith("_age") for name in query):
        return NO_SPANS
    return Spans(*(_span(query, name) for name in Spans._fields))


def _span(query: Mapping[str, str], name: str) -> Span | None:
    age, step = query.get(f"{name}_age"), query.get(f"{name}_incr")
    if not age or not step:
        return None
    if not (age.isdecimal() and step.isdecimal()) or len(age) > 9 or len(step) > 9 or int(step) == 0:
        return None
    span = Span(min(int(age), AGE_MAX), int(step))
    if span.age // span.step > SAMPLES_MAX:
        raise bad_request(f"{name}: more than {SAMPLES_MAX} samples")
    return span


def details(series: Series | None, indexes: Indexes, now: int, span: Span | None) -> dict[str, object]:
    """Return the `_details` of a figure."""
    series = EMPTY if series is None else series
    found: dict[str, object] = {"rate": series.rate(indexes, now)}
    if span is not None:
        samples = series.samples(indexes, now, span.age, span.step)
        if samples:
            newest, oldest = samples[0], samples[-1]
            seconds = (newest["timestamp"] - oldest["timestamp"]) / 1000
            found["samples"] = samples
            found["avg"] = sum(one["sample"] for one in samples) / len(samples)
            found["avg_rate"] = (newest["sample"] - oldest["sample"]) / seconds if seconds else 0.0
    return found


_DELIVER_GET: Final = tuple(QUEUE_COUNTERS.index(one) for one in ("deliver", "deliver_no_ack", "get", "get_no_ack"))


def _figures(kind: Kind, names: tuple[str, ...]) -> tuple[tuple[str, Indexes], ...]:
    found: dict[str, Indexes] = {name: (kind.names.index(name),) for name in names if name in kind.names}
    if "deliver" in found:
        found["deliver_get"] = tuple(kind.names.index(QUEUE_COUNTERS[index]) for index in _DELIVER_GET)
    return tuple(sorted(found.items()))


MESSAGE_STATS: Final[dict[str, tuple[tuple[str, Indexes], ...]]] = {
    QUEUES.name: _figures(QUEUES, QUEUE_COUNTERS),
    VIRTUAL_HOSTS.name: _figures(VIRTUAL_HOSTS, QUEUE_COUNTERS),
    EXCHANGES.name: _figures(EXCHANGES, EXCHANGES.counters),
    CHANNELS.name: _figures(CHANNELS, CHANNELS.counters),
    TOTALS.name: tuple(
        sorted(
            {
                **dict(
                    _figures(
                        TOTALS,
                        (
                            *(one for one in QUEUE_COUNTERS if one != "publish"),
                            *("confirm", "return_unroutable", "drop_unroutable", "get_empty"),
                        ),
                    )
                ),
                # Messages that clients publish, not the copies in queues.
                "publish": (TOTALS.names.index("publish_in"),),
            }.items()
        )
    ),
}
"""The fields of `message_stats` by kind of object, and the numbers of a row that each sums up."""


def message_stats(kind: Kind, row: Row, series: Series | None, now: int, span: Span | None) -> dict[str, object]:
    """Return `message_stats`; empty if all counters are 0."""
    found: dict[str, object] = {}
    if not any(row[: len(kind.counters)]):
        return found
    for name, indexes in MESSAGE_STATS[kind.name]:
        found[name] = sum(row[index] for index in indexes)
        found[f"{name}_details"] = details(series, indexes, now, span)
    return found


def lengths(kind: Kind, row: Row, series: Series | None, now: int, span: Span | None) -> dict[str, object]:
    """Return the numbers of ready and unacknowledged messages, with their rates."""
    ready, unsettled = (kind.names.index(name) for name in LENGTHS)
    return {
        "messages": row[ready] + row[unsettled],
        "messages_details": details(series, (ready, unsettled), now, span),
        "messages_ready": row[ready],
        "messages_ready_details": details(series, (ready,), now, span),
        "messages_unacknowledged": row[unsettled],
        "messages_unacknowledged_details": details(series, (unsettled,), now, span),
    }
