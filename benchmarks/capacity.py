"""How many machines a number of jobs a day takes, from measured costs, and how a day on them goes.

    python -m benchmarks.capacity [--measure] [--handler-ms 1] [--cores 8] [--peak 3] [--share 0.5]

The costs are those of docs/benchmarks, unless --measure takes them on this machine first, or options give them. From
them it computes the machines, then simulates a day on these (`benchmarks.capacity_day`). Nothing of this size was run.
docs/benchmarks/capacity.md holds what it prints without options.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from benchmarks.capacity_costs import Costs, measured
from benchmarks.capacity_day import Day, Rates, simulate

REPLICAS: Final = 3
DAY_S: Final = 86_400
DAYS: Final = tuple(10**power for power in range(6, 10))
GB: Final = 1e9

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Sizing:
    """The load and the machines: `peak` times the mean, `share` of the cores used at the peak.

    Without `state`, no coordinator keeps the state of jobs.
    """

    handler_ms: float = 1.0
    cores: int = 8
    peak: float = 3.0
    share: float = 0.5
    state: bool = True

    def machines(self, us_per_s: float) -> int:
        """How many machines take so many microseconds of CPU a second."""
        return math.ceil(us_per_s / 1e6 / self.share / self.cores)


@dataclass(frozen=True)
class Need:
    """What a number of jobs a day takes: `partitions` of the queue, and `event_partitions` of the event stream."""

    jobs_a_day: int
    peak_a_second: float
    event_partitions: int
    partitions: int
    brokers: int
    coordinators: int
    databases: int
    workers: int
    pushers: int

    @property
    def total(self) -> int:
        return self.brokers + self.coordinators + self.databases + self.workers + self.pushers


def need_of(jobs_a_day: int, sizing: Sizing, costs: Costs) -> Need:
    """Compute the machines. Three brokers, two coordinators and two databases are the least, so that one may fail."""
    peak = jobs_a_day / DAY_S * sizing.peak
    # One process folds each event partition.
    event_partitions = math.ceil(peak * costs.events * costs.event_us / 1e6 / sizing.share) if sizing.state else 1
    # A replica is charged as much as a leader, which is more than it takes.
    brokers = sizing.machines(peak * (REPLICAS * costs.broker_take_us + costs.broker_deliver_us))
    return Need(
        jobs_a_day=jobs_a_day,
        peak_a_second=peak,
        event_partitions=max(1, event_partitions),
        partitions=max(1, math.ceil(peak / costs.queue_jobs_per_s / sizing.share)),
        brokers=REPLICAS * max(1, math.ceil(brokers / REPLICAS)),
        coordinators=max(2, math.ceil(2 * event_partitions / sizing.cores)) if sizing.state else 0,
        # Each has a replica.
        databases=2 * max(1, sizing.machines(peak * costs.events * costs.database_us)) if sizing.state else 0,
        workers=max(2, sizing.machines(peak * (costs.worker_us + sizing.handler_ms * 1000))),
        pushers=sizing.machines(peak * costs.push_us),
    )


def day_of(need: Need, sizing: Sizing, costs: Costs) -> Day:
    """Simulate a day on these machines, with faults at its peak."""
    core_us = sizing.cores * 1e6
    rates = Rates(
        broker=need.brokers * core_us / (REPLICAS * costs.broker_take_us + costs.broker_deliver_us),
        queue=costs.queue_jobs_per_s,
        worker=core_us / (costs.worker_us + sizing.handler_ms * 1000),
        # Where there is no state, nothing is folded, and nothing lags.
        fold=1e6 / costs.events / costs.event_us if sizing.state else math.inf,
        database=math.inf if not sizing.state else need.databases / 2 * core_us / costs.events / costs.database_us,
    )
    clusters = need.brokers // REPLICAS
    divided = need.event_partitions, need.partitions
    return simulate(need.jobs_a_day, sizing.peak, rates, *divided, need.workers, clusters)


def table(sizing: Sizing, costs: Costs) -> str:
    """The needs as a table in Markdown."""
    lines = [
        "| jobs a day | at the peak | event partitions | partitions | RabbitMQ | coordinators | PostgreSQL | workers | pushers | machines |",  # noqa: E501 - one row
        "|" + "--:|" * 10,
    ]
    lines += [_row(need_of(jobs, sizing, costs)) for jobs in DAYS]
    return "\n".join(lines)


def _row(need: Need) -> str:
    machines = (
        f"{need.brokers} | {need.coordinators} | {need.databases} | {need.workers} | {need.pushers} | {need.total}"
    )
    divided = f"{need.event_partitions} | {need.partitions}"
    return f"| {need.jobs_a_day:,} | {need.peak_a_second:,.0f}/s | {divided} | {machines} |"


def day_table(sizing: Sizing, costs: Costs) -> str:
    """The simulated days as a table in Markdown."""
    lines = [
        "| jobs a day | longest wait | most jobs waiting | longest lag of the state | events a day | rows a day | jobs per disk sync |",  # noqa: E501 - one row
        "|" + "--:|" * 7,
    ]
    for jobs in DAYS:
        need = need_of(jobs, sizing, costs)
        day = day_of(need, sizing, costs)
        stored = jobs * costs.events * costs.event_octets / GB, jobs * costs.row_octets / GB
        batch = max(1.0, need.peak_a_second / min(need.partitions, need.brokers) / costs.syncs_per_s)
        lines.append(
            f"| {jobs:,} | {day.longest_wait_s:.0f} s | {day.most_waiting:,.0f} | {day.longest_lag_s:.0f} s"
            f" | {stored[0]:,.1f} GB | {stored[1]:,.1f} GB | {batch:.0f} |"
        )
    return "\n".join(lines)


def cost_options(command: F) -> F:
    """Add an option for each cost."""
    for field in reversed(dataclasses.fields(Costs)):
        name = "--" + field.name.replace("_", "-")
        command = click.option(name, type=click.FloatRange(0, min_open=True), help="A cost, instead.")(command)
    return command


@click.command(help=__doc__)
@click.option("--measure", is_flag=True, help="Measure the costs on this machine first. It takes minutes.")
@click.option("--jobs", default=40_000, show_default=True, type=click.IntRange(1000), help="Of a measured run.")
@click.option("--handler-ms", default=1.0, show_default=True, type=click.FloatRange(0), help="CPU of a handler.")
@click.option("--cores", default=8, show_default=True, type=click.IntRange(1), help="Of a machine.")
@click.option("--peak", default=3.0, show_default=True, type=click.FloatRange(1), help="Times the mean of the day.")
@click.option(
    "--share", default=0.5, show_default=True, type=click.FloatRange(0.01, 1), help="Of the cores, at the peak."
)
@click.option("--no-state", is_flag=True, help="Without coordinators.")
@cost_options
def main(
    *,
    measure: bool,
    jobs: int,
    handler_ms: float,
    cores: int,
    peak: float,
    share: float,
    no_state: bool,
    **given: float | None,
) -> None:
    costs = Costs()
    if measure:
        costs = measured(costs, jobs)
    costs = dataclasses.replace(costs, **{name: value for name, value in given.items() if value is not None})
    click.echo("\n".join(f"{name}: {value:,.1f}" for name, value in dataclasses.asdict(costs).items()) + "\n")
    sizing = Sizing(handler_ms, cores, peak, share, not no_state)
    click.echo(table(sizing, costs) + "\n\n" + day_table(sizing, costs))


if __name__ == "__main__":
    main()
