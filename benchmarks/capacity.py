"""How many machines a number of jobs a day takes, computed from measured costs.

    python -m benchmarks.capacity [--handler-ms 1] [--cores 8] [--peak 3] [--share 0.5]

The costs are those of docs/benchmarks: CPU of a core for each job. Nothing is measured here, and nothing of this size
was run. `docs/benchmarks/capacity.md` holds what it prints.
"""

import math
from dataclasses import dataclass
from typing import Final

import click

PUSH_US: Final = 18.6
"""docs/benchmarks/jobs.md: client, quorum queue with a coordinator."""
BROKER_TAKE_US: Final = 50.0
"""docs/benchmarks/jobs.md: RabbitMQ takes, stores and confirms a job with its events in a quorum queue."""
BROKER_DELIVER_US: Final = 17.0
"""docs/benchmarks/jobs.md: RabbitMQ delivers it and takes the ack."""
WORKER_US: Final = 18.2
"""docs/benchmarks/jobs.md: worker, quorum queue with a coordinator."""
COORDINATOR_US: Final = 123.0
"""docs/benchmarks/workflows.md: a job of a batch, the dearest that was measured."""
REPLICAS: Final = 3
DAY_S: Final = 86_400
DAYS: Final = tuple(10**power for power in range(6, 10))


@dataclass(frozen=True)
class Sizing:
    """The load and the machines: `peak` times the mean, `share` of the cores used at the peak."""

    handler_ms: float = 1.0
    cores: int = 8
    peak: float = 3.0
    share: float = 0.5

    def machines(self, us_per_s: float) -> int:
        """How many machines take so many microseconds of CPU a second."""
        return math.ceil(us_per_s / 1e6 / self.share / self.cores)


@dataclass(frozen=True)
class Need:
    """What a number of jobs a day takes."""

    jobs_a_day: int
    peak_a_second: float
    shards: int
    brokers: int
    coordinators: int
    workers: int
    pushers: int

    @property
    def total(self) -> int:
        return self.brokers + self.coordinators + self.workers + self.pushers


def need_of(jobs_a_day: int, sizing: Sizing) -> Need:
    """Compute the machines. Three brokers and two coordinators are the least, so that one may fail."""
    peak = jobs_a_day / DAY_S * sizing.peak
    # Each coordinator folds all events of its shard in one process.
    shards = max(1, math.ceil(peak * COORDINATOR_US / 1e6 / sizing.share))
    # A replica is charged as much as a leader, which is more than it takes.
    brokers = sizing.machines(peak * (REPLICAS * BROKER_TAKE_US + BROKER_DELIVER_US))
    return Need(
        jobs_a_day=jobs_a_day,
        peak_a_second=peak,
        shards=shards,
        brokers=REPLICAS * max(1, math.ceil(brokers / REPLICAS)),
        coordinators=max(2, math.ceil(2 * shards / sizing.cores)),
        workers=sizing.machines(peak * (WORKER_US + sizing.handler_ms * 1000)),
        pushers=sizing.machines(peak * PUSH_US),
    )


def table(sizing: Sizing) -> str:
    """The needs as a table in Markdown."""
    lines = [
        "| jobs a day | at the peak | shards | RabbitMQ | coordinators | workers | pushers | machines |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_row(need_of(jobs, sizing)) for jobs in DAYS]
    return "\n".join(lines)


def _row(need: Need) -> str:
    machines = f"{need.brokers} | {need.coordinators} | {need.workers} | {need.pushers} | {need.total}"
    return f"| {need.jobs_a_day:,} | {need.peak_a_second:,.0f}/s | {need.shards} | {machines} |"


@click.command(help=__doc__)
@click.option("--handler-ms", default=1.0, show_default=True, type=click.FloatRange(0), help="CPU of a handler.")
@click.option("--cores", default=8, show_default=True, type=click.IntRange(1), help="Of a machine.")
@click.option("--peak", default=3.0, show_default=True, type=click.FloatRange(1), help="Times the mean of the day.")
@click.option(
    "--share", default=0.5, show_default=True, type=click.FloatRange(0.01, 1), help="Of the cores, at the peak."
)
def main(*, handler_ms: float, cores: int, peak: float, share: float) -> None:
    click.echo(table(Sizing(handler_ms, cores, peak, share)))


if __name__ == "__main__":
    main()
