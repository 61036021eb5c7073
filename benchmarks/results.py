"""The measurements of a comparison, with their medians and ratios."""

import statistics
from dataclasses import dataclass, field
from typing import Any, Final

BASELINE: Final = "RabbitMQ"

# One JSON line of amqpbench.
Row = dict[str, Any]


@dataclass
class Results:
    """`runs` by scenario and broker; start time in seconds and memory at rest in MB by broker, one a round."""

    runs: dict[str, dict[str, list[Row]]] = field(default_factory=dict)
    start_seconds: dict[str, list[float]] = field(default_factory=dict)
    idle_rss_mb: dict[str, list[float]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add_run(self, scenario: str, broker: str, row: Row) -> None:
        self.runs.setdefault(scenario, {}).setdefault(broker, []).append(row)

    def add_start(self, broker: str, seconds: float, rss_mb: float) -> None:
        self.start_seconds.setdefault(broker, []).append(seconds)
        self.idle_rss_mb.setdefault(broker, []).append(rss_mb)

    def median(self, scenario: str, broker: str, *path: str) -> float | None:
        """The median of one figure of the rows, such as `median("lat-pcc-1k", "RabbitMQ", "e2e_us", "p50")`."""
        values = [pick(row, path) for row in self.runs.get(scenario, {}).get(broker, [])]
        return statistics.median(values) if values else None

    def spread(self, scenario: str, broker: str, *path: str) -> tuple[float, float] | None:
        """The smallest and the largest value of one figure."""
        values = [pick(row, path) for row in self.runs.get(scenario, {}).get(broker, [])]
        return (min(values), max(values)) if values else None

    def ratio(self, scenario: str, broker: str, *path: str) -> float | None:
        """How many times smaller a broker's figure is than RabbitMQ's."""
        own, other = self.median(scenario, broker, *path), self.median(scenario, BASELINE, *path)
        return other / own if own and other is not None else None

    def as_json(self) -> dict[str, object]:
        return {
            "versions": self.versions,
            "start_seconds": self.start_seconds,
            "idle_rss_mb": self.idle_rss_mb,
            "runs": self.runs,
            "failures": self.failures,
        }


def pick(row: Row, path: tuple[str, ...]) -> float:
    value: Any = row
    for name in path:
        value = value[name]
    return float(value)
