"""The ranges of options that are numbers. Every numeric option has one with both ends; a test walks all commands."""

from __future__ import annotations

import math
from typing import Final

import click


class Number(click.FloatRange):
    """A number with two ends. click alone takes not-a-number, which is neither below nor above."""

    name = "number"

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


PORT: Final = click.IntRange(0, 65_535)
RATE: Final = Number(min=0, min_open=True, max=1_000_000)
"""Messages or jobs a second."""
SECONDS: Final = Number(min=0, max=31_536_000)
"""Up to a year."""
