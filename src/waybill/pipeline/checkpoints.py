"""Reads the positions of a query in its streams from the checkpoint, without Spark.

A checkpoint is a directory with a file for each batch: `offsets/N` says what batch N reads, and `commits/N` that it is
done. In an offset file, the first line is a version, the second metadata, and each further one a source.
"""

import json
from pathlib import Path
from typing import Final

from waybill.pipeline.offsets import distance
from waybill.pipeline.options import SourceOptions
from waybill.pipeline.selection import selected
from waybill.pipeline.stream_log import StreamLog
from waybill.pipeline.stream_marks import without_marks

_HEAD_LINES: Final = 2
_FILE_MAX: Final = 1 << 24


class CheckpointError(RuntimeError):
    """There is no checkpoint, or it is not one of a query that reads streams."""


def read_to(checkpoint: Path) -> dict[str, int]:
    """The offset after the last message of each stream in completed batches; empty if there are none."""
    if not (checkpoint / "offsets").is_dir():
        raise CheckpointError(
            f"{checkpoint} is not a checkpoint of a streaming query; `waybill pipeline run` creates one"
        )
    done = [int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdigit()]
    if not done:
        return {}
    path = checkpoint / "offsets" / str(max(done))
    try:
        if path.stat().st_size > _FILE_MAX:
            raise CheckpointError(f"{path} is larger than {_FILE_MAX} bytes")
        sources = [json.loads(line) for line in path.read_text("utf-8").splitlines()[_HEAD_LINES:]]
    except (OSError, ValueError, RecursionError) as problem:
        raise CheckpointError(f"{path} cannot be read: {problem}") from None
    found: dict[str, int] = {}
    for source in sources:
        if isinstance(source, dict):
            found |= without_marks(source)
    return found


def streams_behind(checkpoint: Path, options: SourceOptions) -> dict[str, tuple[int, int, int]]:
    """For each stream: the read position, the end, and the number of messages between. Raises StreamError too."""
    known = read_to(checkpoint)
    log = StreamLog(options)
    found = {}
    for stream in selected(options):
        end = log.end(stream)
        # Before the first batch, the position is the first message.
        at = known[stream] if stream in known else log.first(stream)
        found[stream] = (at, end, distance({stream: at}, {stream: end}))
    return found
