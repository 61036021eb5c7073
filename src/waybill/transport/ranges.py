"""Checks of numeric settings: a value out of range is refused with an error that names the range."""

from typing import Final

PORTS: Final = (0, 65_535)


def check_whole(name: str, value: int | None, least: int, most: int) -> None:
    """Raise ValueError unless `value` is an integer in the range, or None."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, not {value!r}")


def check_number(name: str, value: float | None, least: float, most: float) -> None:
    """Raise ValueError unless `value` is a number in the range, or None. NaN is in no range."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} must be a number from {least:g} to {most:g}, not {value!r}")
