"""The options of the stream sources, parsed and checked before anything is opened.

Their names follow Spark's Kafka source and, as in Spark, ignore case. An option that is not known is an error, because
a misspelt one would otherwise be a default that nobody chose.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

# Where to start or end: one word for every stream, or an offset for each.
Position: TypeAlias = Literal["earliest", "latest"] | Mapping[str, int]

_NAMES: Final = (
    "uri",
    "stream",
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "pollTimeoutMs",
    "prefetch",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
_BY_LOWER_NAME: Final = {name.lower(): name for name in _NAMES}
_TRUTH: Final = {"true": True, "false": False}
_PREFETCH_MAX: Final = 65_535


class OptionError(ValueError):
    """An option that is unknown, missing or has no usable value."""


@dataclass(frozen=True)
class SourceOptions:
    """What a reader was asked for. Offsets count messages of a stream; an ending offset is the first one not read."""

    uri: str
    streams: tuple[str, ...]
    starting: Position = EARLIEST
    ending: Position = LATEST
    max_offsets_per_trigger: int | None = None
    min_partitions: int = 1
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    poll_timeout_ms: int = 30_000
    prefetch: int = 2_000
    fetch_retries: int = 5
    fetch_retry_interval_ms: int = 1_000

    @property
    def address(self) -> str:
        """The broker's host, port and virtual host, for messages: never the password."""
        return address(self.uri)


def parse_options(given: Mapping[str, str], *, default_stream: str | None, streaming: bool) -> SourceOptions:
    """Check `given`. Raises OptionError, which names the option and, for an unknown one, the nearest that is known."""
    options = _known(given)
    uri = options.get("uri", "")
    if not uri:
        raise OptionError("option uri is required, for example amqp://guest:guest@localhost:5672/%2F")
    streams = _streams(options, default_stream)
    starting = _position(options, "startingOffsets", LATEST if streaming else EARLIEST, streams)
    ending = _position(options, "endingOffsets", LATEST, streams)
    _check_positions(options, starting, ending, streaming=streaming)
    return SourceOptions(
        uri=uri,
        streams=streams,
        starting=starting,
        ending=ending,
        max_offsets_per_trigger=_count(options, "maxOffsetsPerTrigger"),
        min_partitions=_count(options, "minPartitions") or 1,
        max_records_per_partition=_count(options, "maxRecordsPerPartition"),
        fail_on_data_loss=_truth(options, "failOnDataLoss", default=True),
        poll_timeout_ms=_count(options, "pollTimeoutMs") or 30_000,
        prefetch=min(_count(options, "prefetch") or 2_000, _PREFETCH_MAX),
        fetch_retries=_retries(options),
        fetch_retry_interval_ms=_count(options, "fetchOffset.retryIntervalMs") or 1_000,
    )


def address(uri: str) -> str:
    """The host, port and virtual host of an AMQP URI, without user, password or query."""
    try:
        parts = urlsplit(uri)
        port = parts.port or (5671 if parts.scheme == "amqps" else 5672)
        host = parts.hostname or "localhost"
    except ValueError:
        return "the broker of an invalid URI"
    return f"{f'[{host}]' if ':' in host else host}:{port}{parts.path}"


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """The options by their proper names."""
    known: dict[str, str] = {}
    for name, value in given.items():
        proper = _BY_LOWER_NAME.get(name.lower())
        if proper is None:
            nearest = difflib.get_close_matches(name.lower(), _BY_LOWER_NAME, n=1, cutoff=0.0)
            raise OptionError(f"unknown option {name!r}: did you mean {_BY_LOWER_NAME[nearest[0]]!r}?")
        known[proper] = value
    return known


def _streams(options: Mapping[str, str], default_stream: str | None) -> tuple[str, ...]:
    if "stream" in options and "subscribe" in options:
        raise OptionError("options stream and subscribe mean the same: give one of them")
    text = options.get("stream") or options.get("subscribe") or default_stream
    streams = tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
    if not streams:
        raise OptionError("option stream is required: the name of a stream queue, or several separated by commas")
    return streams


def _position(options: Mapping[str, str], name: str, default: Position, streams: tuple[str, ...]) -> Position:
    """`earliest`, `latest`, a number (for a single stream), or JSON such as {"ojs.events": 1000}."""
    text = options.get(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word == EARLIEST:
        return EARLIEST
    if word == LATEST:
        return LATEST
    try:
        value = json.loads(text)
    except ValueError:
        raise OptionError(f"option {name} is earliest, latest or JSON, not {text!r}") from None
    if _is_offset(value) and len(streams) == 1:
        return {streams[0]: value}
    if not isinstance(value, dict) or set(value) != set(streams) or not all(map(_is_offset, value.values())):
        raise OptionError(f"option {name} needs an offset of 0 or more for each of {', '.join(streams)}, not {text!r}")
    return value


def _check_positions(options: Mapping[str, str], starting: Position, ending: Position, *, streaming: bool) -> None:
    if streaming and "endingOffsets" in options:
        raise OptionError("option endingOffsets is for batch reads: a streaming query has no end")
    if not streaming and starting == LATEST:
        raise OptionError("option startingOffsets must not be latest in a batch read: there would be nothing to read")
    if ending == EARLIEST:
        raise OptionError("option endingOffsets must not be earliest: there would be nothing to read")


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count(options: Mapping[str, str], name: str) -> int | None:
    """A whole number of 1 or more, or None if it was not given."""
    text = options.get(name)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise OptionError(f"option {name} is a whole number of 1 or more, not {text!r}")
    return value


def _retries(options: Mapping[str, str]) -> int:
    text = options.get("fetchOffset.numRetries", "5")
    if not text.isascii() or not text.isdigit():
        raise OptionError(f"option fetchOffset.numRetries is a whole number of 0 or more, not {text!r}")
    return int(text)


def _truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in _TRUTH:
        raise OptionError(f"option {name} is true or false, not {text!r}")
    return _TRUTH[text.lower()]
