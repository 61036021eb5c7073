"""The ranges of numeric options. Every numeric option has a range with both ends; a test checks all commands."""

from __future__ import annotations

import math
from typing import Final

import click


class Number(click.FloatRange):
    """A float range that refuses NaN, which click's own accepts."""

    name = "number"

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


PORT: Final = click.IntRange(0, 65_535)
RATE: Final = Number(min=0, min_open=True, max=1_000_000)
"""Messages or jobs per second."""
SECONDS: Final = Number(min=0, max=31_536_000)
"""Up to a year."""
DAYS: Final = click.IntRange(1, 36_500)
