"""The options for the numbers of partitions of job queues and of the event stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.envelope import check_queue
from waybill.ojs.topology.topology import MAX_EVENT_PARTITIONS, MAX_PARTITIONS

F = TypeVar("F", bound=Callable[..., Any])


def partitions_option(name: str = "--partitions") -> Callable[[F], F]:
    """Add an option QUEUE=COUNT, which can be repeated; the command gets a dictionary, None if it was not given."""
    return click.option(
        name,
        multiple=True,
        metavar="QUEUE=COUNT",
        callback=_read,
        help=f"Number of AMQP queues of a job queue, 1 to {MAX_PARTITIONS}. Repeat it for other queues.",
    )


def event_partitions_option(name: str = "--event-partitions") -> Callable[[F], F]:
    """Add an option for the number of partitions; the command gets None if it was not given."""
    return click.option(
        name,
        type=click.IntRange(1, MAX_EVENT_PARTITIONS),
        help="Number of streams for the events of jobs. It can be raised later, not lowered.",
    )


def _read(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, int] | None:
    del context
    found: dict[str, int] = {}
    for value in values:
        queue, _, digits = value.partition("=")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 4 and 1 <= int(digits) <= MAX_PARTITIONS):
            raise click.BadParameter(f"{value!r} is not QUEUE=COUNT, with 1 to {MAX_PARTITIONS}", param=parameter)
        try:
            check_queue(queue)
        except InvalidJob as error:
            raise click.BadParameter(str(error), param=parameter) from None
        found[queue] = int(digits)
    return found or None
