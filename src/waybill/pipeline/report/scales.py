"""Axes: where values fall on a chart, and where its ticks are."""

import math
from dataclasses import dataclass
from typing import Final

_STEPS: Final = (1, 2, 5, 10)


@dataclass(frozen=True)
class LinearScale:
    """Maps 0..`top` to `bottom_px`..`top_px`; the top is a whole number of ticks."""

    top: float
    step: float
    bottom_px: float
    top_px: float

    def __call__(self, value: float) -> float:
        return self.bottom_px + (self.top_px - self.bottom_px) * value / self.top

    @property
    def ticks(self) -> list[float]:
        return [self.step * index for index in range(round(self.top / self.step) + 1)]


@dataclass(frozen=True)
class LogScale:
    """Maps `low`..`high`, powers of ten, to `bottom_px`..`top_px`; values outside are drawn at the nearer end."""

    low: float
    high: float
    bottom_px: float
    top_px: float

    def __call__(self, value: float) -> float:
        bounded = min(max(value, self.low), self.high)
        part = math.log10(bounded / self.low) / math.log10(self.high / self.low)
        return self.bottom_px + (self.top_px - self.bottom_px) * part

    @property
    def ticks(self) -> list[float]:
        decades = round(math.log10(self.high / self.low))
        return [self.low * 10**index for index in range(decades + 1)]


def linear(largest: float, bottom_px: float, top_px: float, ticks: int = 4) -> LinearScale:
    """A scale from 0 to a round number that is not below `largest`, with about `ticks` ticks of 1, 2 or 5."""
    step = round_up((largest or 1) / ticks)
    return LinearScale(step * max(1, math.ceil(largest / step - 1e-9)), step, bottom_px, top_px)


def logarithmic(smallest: float, largest: float, bottom_px: float, top_px: float) -> LogScale:
    """A scale over whole decades of milliseconds that holds both values; it begins at one millisecond or later."""
    low = 10 ** math.floor(math.log10(max(smallest, 1)))
    high = 10 ** math.ceil(math.log10(max(largest, low * 10)))
    return LogScale(low, high, bottom_px, top_px)


def round_up(value: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is not below `value`."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _STEPS if step * power >= value * (1 - 1e-9))
