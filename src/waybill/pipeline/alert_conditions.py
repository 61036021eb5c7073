"""Decides whether a rule fires, from sums over windows. Pure: the sums come from `transforms.alert_inputs`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, TypeAlias

from waybill.pipeline.alert_rules import COUNTS, AnomalyRule, BurnRule

# One standard deviation of a normal distribution in median absolute deviations.
_PER_DEVIATION: Final = 1.4826
# The variation of run times that is considered normal, as a share of the median.
_SHARE_OF_TIME: Final = 0.05

Sums: TypeAlias = Mapping[int, tuple[int, int]]
"""By window length in seconds: the jobs that ended, and those that missed the objective."""


@dataclass(frozen=True, slots=True)
class Firing:
    """Why a rule fires: the burn rate or the deviation, and a sentence."""

    value: float
    text: str


def burning(rule: BurnRule, sums: Sums) -> Firing | None:
    """Whether the burn rate is too high in both windows of a pair. Returns the largest rate of the long windows."""
    found: Firing | None = None
    for window in rule.windows:
        (ended, missed), (ended_lately, missed_lately) = sums[window.long_s], sums[window.short_s]
        if ended < rule.least or not ended_lately:
            continue
        budget = 1 - rule.objective
        rate, lately = missed / ended / budget, missed_lately / ended_lately / budget
        if min(rate, lately) > window.burn and (found is None or rate > found.value):
            text = (
                f"{missed} of {ended} jobs missed the objective of {rule.objective:.6g} in {_span(window.long_s)}, "
                f"{missed_lately} of {ended_lately} in {_span(window.short_s)}: {rate:.1f} times what the budget allows"
            )
            found = Firing(rate, text)
    return found


def unusual(rule: AnomalyRule, now: float | None, former: Sequence[float]) -> Firing | None:
    """Whether the value of this hour deviates from those of the same hour on previous days, in any order.

    `now` is None for an hour without values, which is not unusual.
    """
    if now is None or len(former) < rule.least_days:
        return None
    usual = median(former)
    deviation = _PER_DEVIATION * median(abs(value - usual) for value in former)
    # Equal days have no deviation. Counts vary by their square root even if nothing changes.
    least = math.sqrt(max(usual, 1.0)) if rule.measure in COUNTS else max(_SHARE_OF_TIME * usual, 1.0)
    distance = (now - usual) / max(deviation, least)
    if abs(distance) <= rule.threshold or rule.direction == ("below" if distance > 0 else "above"):
        return None
    words = "above" if distance > 0 else "below"
    text = (
        f"{rule.measure} is {now:,.0f} in the last hour, {abs(distance):.1f} deviations {words} the {usual:,.0f} of "
        f"the same hour on {len(former)} days before"
    )
    return Firing(distance, text)


def _span(seconds: int) -> str:
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds % unit == 0:
            return f"{seconds // unit}{name}"
    return f"{seconds}s"
