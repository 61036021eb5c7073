"""Checks of settings that are numbers: what is out of range is refused at once, with the range named."""

from typing import Final

PORTS: Final = (0, 65_535)


def check_whole(name: str, value: int | None, least: int, most: int) -> None:
    """Raise ValueError unless `value` is a whole number of the range, or None."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} is a whole number from {least} to {most}, not {value!r}")


def check_number(name: str, value: float | None, least: float, most: float) -> None:
    """Raise ValueError unless `value` is a number of the range, or None. Not-a-number is in no range."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} is a number from {least:g} to {most:g}, not {value!r}")
