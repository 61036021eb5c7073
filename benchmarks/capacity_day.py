"""A day of jobs on a fleet of machines: a model of queues in steps of some seconds, with faults at the peak.

    arrivals -> partitions of the queues -> workers -> events -> coordinators -> PostgreSQL

Each stage passes on what it has, up to its rate. Faults, one after the other, when the most jobs come: a broker node is
gone for ten minutes (its cluster elects new leaders first), a worker machine is gone for ten minutes, a coordinator is
killed and another takes over, the database fails over to its replica. Rates are those of whole machines, not of the
share of them that the plan uses, so the spare share is what takes up the faults.
"""

import math
import random
from collections import deque
from dataclasses import dataclass
from typing import Final

DAY_S: Final = 86_400
STEP_S: Final = 2
PEAK_AT_S: Final = 14 * 3600
FAULT_EVERY_S: Final = 1200
GONE_S: Final = 600
ELECTION_S: Final = 10
"""RabbitMQ's quorum queues: `make cluster` sees some seconds."""
TAKEOVER_S: Final = 10
FAILOVER_S: Final = 60
"""`tests/soak/failover`: a primary killed, a replica promoted."""
SEED: Final = 1


@dataclass(frozen=True)
class Rates:
    """Jobs a second: of all brokers, a queue, a worker machine, a coordinator process, all databases."""

    broker: float
    queue: float
    worker: float
    fold: float
    database: float


@dataclass
class Day:
    """How a day went. Jobs wait in queues; the state lags by what coordinators have not folded."""

    pushed: float = 0.0
    done: float = 0.0
    folded: float = 0.0
    most_waiting: float = 0.0
    longest_wait_s: float = 0.0
    longest_lag_s: float = 0.0


def simulate(
    jobs_a_day: int, peak: float, rates: Rates, event_partitions: int, partitions: int, workers: int, clusters: int
) -> Day:
    """Return the day. Jobs are hashed over the partitions of queue and events, so these get unequal parts."""
    chance = random.Random(SEED)
    day = Day()
    parts, event_parts = _parts(chance, partitions), _parts(chance, event_partitions)
    shape = _Shape(peak)
    waiting, unfolded, outside = [0.0] * partitions, [0.0] * event_partitions, 0.0
    jobs, states = _Age(), [_Age() for _ in range(event_partitions)]
    for second in range(0, DAY_S, STEP_S):
        fault = _Faults(second - PEAK_AT_S)
        arrivals = _poisson(chance, jobs_a_day / DAY_S * shape.at(second) * STEP_S)
        day.pushed += arrivals
        outside += arrivals
        jobs.come(second, arrivals)
        broker = rates.broker * STEP_S * (1 - (1 - fault.broker) / clusters)
        taken = min(outside, broker)
        outside -= taken
        for lane, part in enumerate(parts):
            waiting[lane] += taken * part
        # Workers consume all partitions: what one has not, another may use.
        most = [min(count, rates.queue * STEP_S) for count in waiting]
        able = min(sum(most), rates.worker * (workers - fault.workers_gone) * STEP_S)
        scale = able / sum(most) if able else 0.0
        for lane, count in enumerate(most):
            waiting[lane] -= count * scale
        for number, part in enumerate(event_parts):
            unfolded[number] += able * part
            states[number].come(second, able * part)
        day.done += able
        day.longest_wait_s = max(day.longest_wait_s, jobs.go(second, able))
        folds = [
            min(count, rates.fold * STEP_S * (fault.coordinator if number == 0 else 1.0))
            for number, count in enumerate(unfolded)
        ]
        ratio = min(1.0, rates.database * STEP_S * fault.database / sum(folds)) if sum(folds) else 0.0
        for number, count in enumerate(folds):
            unfolded[number] -= count * ratio
            day.folded += count * ratio
            day.longest_lag_s = max(day.longest_lag_s, states[number].go(second, count * ratio))
        day.most_waiting = max(day.most_waiting, sum(waiting) + outside)
    return day


def _parts(chance: random.Random, count: int) -> list[float]:
    """Return the shares of partitions. Hashes of ids are not even: parts differ by a tenth."""
    weights = [max(0.5, chance.gauss(1, 0.1)) for _ in range(count)]
    return [weight / sum(weights) for weight in weights]


class _Shape:
    """The course of a day: a mean of 1, and `peak` at its peak. A power of a raised cosine has both."""

    def __init__(self, peak: float) -> None:
        low, high = 0.0, 1e6
        for _ in range(100):
            power = (low + high) / 2
            low, high = (power, high) if self._peak_of(power) < peak else (low, power)
        self._power = low
        self._peak = self._peak_of(low)

    @staticmethod
    def _peak_of(power: float) -> float:
        return math.sqrt(math.pi) * math.exp(math.lgamma(power + 1) - math.lgamma(power + 0.5))

    def at(self, second: float) -> float:
        raised = (1 + math.cos(2 * math.pi * (second - PEAK_AT_S) / DAY_S)) / 2
        return float(self._peak * raised**self._power)


class _Faults:
    """What is out of order so many seconds after the peak begins; 1 is well."""

    def __init__(self, after_s: float) -> None:
        number, into_s = divmod(after_s, FAULT_EVERY_S)
        self.broker = self.coordinator = self.database = 1.0
        self.workers_gone = 0
        if number == 0:
            self.broker = 0.0 if into_s < ELECTION_S else 2 / 3 if into_s < GONE_S else 1.0
        elif number == 1:
            self.workers_gone = 1 if into_s < GONE_S else 0
        elif number in {2, 3}:
            lasts_s = TAKEOVER_S if number == 2 else FAILOVER_S
            gone = into_s < lasts_s
            self.coordinator, self.database = (float(not (gone and number == place)) for place in (2, 3))


class _Age:
    """How long the oldest of what waits has been waiting: what comes first goes first."""

    def __init__(self) -> None:
        self._arrivals: deque[tuple[float, float]] = deque()
        self._come = self._gone = 0.0

    def come(self, second: float, count: float) -> None:
        self._come += count
        self._arrivals.append((self._come, second))

    def go(self, second: float, count: float) -> float:
        """Let some go; return the age of the last of them, in whole steps, or of what waits now if none went."""
        self._gone += count
        age = 0.0
        # Sums of fractions are not exact.
        while self._arrivals and self._arrivals[0][0] <= self._gone * (1 + 1e-12) + 1e-6:
            age = max(age, second - self._arrivals.popleft()[1])
        return max(age, second - self._arrivals[0][1]) if self._arrivals else age


def _poisson(chance: random.Random, mean: float) -> float:
    return max(0.0, round(chance.gauss(mean, math.sqrt(mean))))
