"""Computes how far a streaming query is behind its streams, from Spark's progress report.

    query.lastProgress.sources[0].inputRowsPerSecond       # how fast messages come
    query.lastProgress.sources[0].processedRowsPerSecond   # how fast they are read
    lag(query.lastProgress)                                # {"orders": 1200}

Sources written in Python have no custom metrics in Spark: they can only report the latest offset.
"""

import json
from collections.abc import Mapping

from pyspark.sql.streaming.listener import StreamingQueryProgress


def lag(progress: StreamingQueryProgress) -> dict[str, int]:
    """The messages that each stream had beyond the end of the batch when the batch was planned, by stream."""
    behind: dict[str, int] = {}
    for source in progress.sources:
        end, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
        for stream, at in latest.items():
            behind[stream] = behind.get(stream, 0) + max(0, at - end.get(stream, 0))
    return behind


def _offsets(text: str | None) -> Mapping[str, int]:
    """The offsets by stream; none for other sources."""
    try:
        found = json.loads(text or "null")
    except ValueError:
        return {}
    # Values that are not numbers are internal to a source. Without any number, it is not a source of this package.
    return {stream: at for stream, at in found.items() if type(at) is int} if isinstance(found, dict) else {}
