"""Parts: the units in which silver and gold are rewritten.

A part has a number: twice its hour (hours since 1970, UTC), plus one for jobs that have not ended. Its files are in the
directory of its month, with the hour in their names:

    silver/jobs/month=2026-03/2026-03-01T13.<refresh>.parquet          jobs that ended, by the hour of their last event
    silver/jobs/month=2026-03/2026-03-01T13-open.<refresh>.parquet     jobs that have not ended, likewise
    gold/activity/month=2026-03/2026-03-01T13.<refresh>.parquet        the minutes of an hour

Ended jobs rarely change, and few jobs have not ended. So a batch rewrites the parts of its own hours, and small parts
of jobs that waited long.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation
from pyspark.sql.types import IntegerType, StructField

HOUR_S: Final = 3600
HOUR_MS: Final = HOUR_S * 1000
PART: Final = "part"
"""The column with the number of a row's part, in the files of silver."""
PART_FIELD: Final = StructField(PART, IntegerType())
_OPEN: Final = "-open"
_SUFFIX: Final = ".parquet"
_HOUR_DIGITS: Final = len("2026-03-01T13")


def hour_of(time: Column | str) -> Column:
    """The number of the hour of a timestamp."""
    return F.floor(F.unix_seconds(time) / F.lit(HOUR_S)).cast("int")


def hour_of_ms(milliseconds: Column) -> Column:
    """The number of the hour of milliseconds since 1970."""
    return F.floor(milliseconds / F.lit(HOUR_MS)).cast("int")


def part_of(hour: Column, is_open: Column) -> Column:
    """The number of a part."""
    return (hour * 2 + is_open.cast("int")).cast("int")


def parts_of_hours(hours: Iterable[int]) -> list[int]:
    """The parts of some hours in tables without open jobs."""
    return [hour * 2 for hour in sorted(hours)]


def month_of(part: int) -> str:
    """The month of a part: 2026-03."""
    return _start(part).strftime("%Y-%m")


def file_name(part: int, number: int, own: str) -> str:
    """The name of a file of a part, which may have several; `own` tells those of one refresh from those of others."""
    middle = f".{number}" if number else ""
    return f"{_start(part):%Y-%m-%dT%H}{_OPEN if part % 2 else ''}.{own}{middle}{_SUFFIX}"


def part_of_file(name: str) -> int | None:
    """The part that a file of this name belongs to; None for other files."""
    stem, _, rest = name[_HOUR_DIGITS:].partition(".")
    if stem not in ("", _OPEN) or not (rest + _SUFFIX).endswith(_SUFFIX) or not name.endswith(_SUFFIX):
        return None
    try:
        start = datetime.fromisoformat(name[:_HOUR_DIGITS]).replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(start.timestamp()) // HOUR_S * 2 + (stem == _OPEN)


def _start(part: int) -> datetime:
    return datetime.fromtimestamp(part // 2 * HOUR_S, UTC)
