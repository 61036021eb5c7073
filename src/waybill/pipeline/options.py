"""The options of the stream sources, checked before anything is opened. Their names follow Spark's Kafka source."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from waybill.client.super_streams import partition_name
from waybill.pipeline.named_options import NamedOptions, OptionError, address, moment

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

# A start or end in a stream: a word, an offset, or a time of the broker's clock.
Place: TypeAlias = Literal["earliest", "latest"] | int | datetime
# One position for all streams, or one for each.
Position: TypeAlias = Literal["earliest", "latest"] | datetime | Mapping[str, Place]

_NAMES: Final = (
    "uri",
    "stream",
    "subscribe",
    "subscribePattern",
    "superStream",
    "eventStream",
    "assign",
    "managementUri",
    "startingOffsets",
    "endingOffsets",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "pollTimeoutMs",
    "prefetch",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
# The numbers that Spark's Kafka source uses for these words.
_WORDS: Final[Mapping[int, Place]] = {-2: EARLIEST, -1: LATEST}
# Options that select streams. Only one of them may be given.
_CHOICES: Final = ("stream", "subscribe", "subscribePattern", "superStream", "eventStream", "assign")
_PATTERN_MAX: Final = 500
_PREFETCH_MAX: Final = 65_535
_TIME_MAX_MS: Final = 31_536_000_000
_MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000


@dataclass(frozen=True)
class SourceOptions:
    """The options of a reader. Offsets count messages of a stream; an ending offset is the first one not read.

    Without `streams`, `super_stream`, `event_stream` or `pattern` says which ones are read: see `selection`.
    """

    uri: str
    streams: tuple[str, ...]
    super_stream: str | None = None
    event_stream: str | None = None
    pattern: str | None = None
    management_uri: str | None = None
    starting: Position = EARLIEST
    ending: Position = LATEST
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = _MAX_TRIGGER_DELAY_MS
    min_partitions: int = 1
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = True
    poll_timeout_ms: int = 30_000
    prefetch: int = 2_000
    fetch_retries: int = 5
    fetch_retry_interval_ms: int = 1_000

    @property
    def address(self) -> str:
        """The broker's host, port and virtual host, for messages: never the password."""
        return address(self.uri)


def chosen_stream(text: str) -> tuple[str, str]:
    """The source option, and its value, for what a user of the pipeline calls the stream.

    It is one event stream with all of its partitions, or the streams of a comma-separated list and no others.
    """
    return ("stream" if "," in text else "eventStream"), text


def parse_options(given: Mapping[str, str], *, default_stream: str | None, streaming: bool) -> SourceOptions:
    """Check `given`. Raises OptionError, which names the option and, for an unknown one, the most similar known one.

    Without a `default_stream` the rows are messages, with headers by default.
    """
    options = NamedOptions(given, _NAMES)
    uri = options.uri()
    super_stream, pattern = options.text("superStream"), _pattern(options)
    event_stream = options.text("eventStream") or (None if _is_chosen(options) else default_stream)
    streams = _streams(options, event_stream)
    single = streams[0] if len(streams) == 1 else event_stream
    starting = _position(options, "starting", LATEST if streaming else EARLIEST, streams, single)
    ending = _position(options, "ending", LATEST, streams, single)
    _check_positions(options, starting, ending, streaming=streaming)
    retries = options.count("fetchOffset.numRetries", 0)
    most, least = options.count("maxOffsetsPerTrigger"), options.count("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError("option minOffsetsPerTrigger must not be larger than maxOffsetsPerTrigger")
    return SourceOptions(
        uri=uri,
        streams=streams,
        super_stream=super_stream,
        event_stream=event_stream,
        pattern=pattern,
        management_uri=_management_uri(options),
        starting=starting,
        ending=ending,
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=options.duration_ms("maxTriggerDelay") or _MAX_TRIGGER_DELAY_MS,
        min_partitions=options.count("minPartitions") or 1,
        max_records_per_partition=options.count("maxRecordsPerPartition"),
        fail_on_data_loss=options.truth("failOnDataLoss", default=True),
        include_headers=options.truth("includeHeaders", default=default_stream is None),
        poll_timeout_ms=options.count("pollTimeoutMs", 1, _TIME_MAX_MS) or 30_000,
        prefetch=options.count("prefetch", 1, _PREFETCH_MAX) or 2_000,
        fetch_retries=5 if retries is None else retries,
        fetch_retry_interval_ms=options.count("fetchOffset.retryIntervalMs", 1, _TIME_MAX_MS) or 1_000,
    )


def _is_chosen(options: NamedOptions) -> bool:
    """Whether a stream is named; an empty name means the default."""
    return any(options.text(name) for name in _CHOICES)


def _streams(options: NamedOptions, event_stream: str | None) -> tuple[str, ...]:
    """The named streams; none if they are to be searched."""
    chosen = [name for name in _CHOICES if name in options]
    if len(chosen) > 1:
        raise OptionError(f"options {chosen[0]} and {chosen[1]} cannot be used together")
    if "assign" in options:
        return _assigned(options.text("assign") or "")
    if options.text("superStream") or options.text("subscribePattern") or event_stream is not None:
        return ()
    text = options.text("stream") or options.text("subscribe")
    streams = tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
    if not streams:
        raise OptionError("option stream is required: a comma-separated list of stream queues")
    return streams


def _assigned(text: str) -> tuple[str, ...]:
    """The streams of some partitions of super streams, as JSON such as {"invoices": [0, 2]}."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    entries = found.items() if isinstance(found, dict) else ()
    streams = tuple(
        partition_name(name, key)
        for name, keys in entries
        for key in (keys if isinstance(keys, list) else [None])
        if isinstance(key, str | int) and not isinstance(key, bool)
    )
    if not streams or len(streams) != sum(len(keys) if isinstance(keys, list) else 1 for _, keys in entries):
        raise OptionError(
            'option assign must be JSON with the partitions of each super stream, such as {"orders": [0, 1]}, '
            f"not {text!r}"
        )
    return tuple(dict.fromkeys(streams))


def _pattern(options: NamedOptions) -> str | None:
    pattern = options.text("subscribePattern")
    if pattern is None:
        return None
    try:
        if len(pattern) > _PATTERN_MAX:
            raise OptionError(f"option subscribePattern is longer than {_PATTERN_MAX} characters")
        re.compile(pattern)
    except re.error as problem:
        raise OptionError(f"option subscribePattern is not a regular expression: {problem}") from None
    return pattern


def _management_uri(options: NamedOptions) -> str | None:
    uri = options.text("managementUri")
    if uri is None:
        return None
    try:
        parts = urlsplit(uri)
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise OptionError("option managementUri must be the URL of the management API, such as http://localhost:15672")
    return uri


def _position(
    options: NamedOptions, end: str, default: Position, streams: tuple[str, ...], single: str | None
) -> Position:
    """`earliest`, `latest`, a number (for the `single` stream), or JSON such as {"ojs.events": 1000}.

    A timestamp of all streams comes first, then those of each, as in Spark's Kafka source.
    """
    at = options.moment(f"{end}Timestamp")
    if at is not None:
        return at
    by_stream = options.text(f"{end}OffsetsByTimestamp")
    if by_stream is not None:
        return _moments(f"{end}OffsetsByTimestamp", by_stream, streams)
    name = f"{end}Offsets"
    text = options.text(name)
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
        raise OptionError(f"option {name} must be earliest, latest or JSON, not {text!r}") from None
    if _is_offset(value) and single is not None:
        value = {single: value}
    is_complete = isinstance(value, dict) and (set(value) == set(streams) or not streams)
    if not is_complete or not all(map(_is_offset, value.values())):
        raise OptionError(
            f"option {name} needs an offset of 0 or more for each of {_names(streams)} "
            f"(or -2 for earliest, -1 for latest), not {text!r}"
        )
    return {stream: _WORDS.get(offset, offset) for stream, offset in value.items()}


def _moments(name: str, text: str, streams: tuple[str, ...]) -> dict[str, Place]:
    """A moment for each stream, as JSON such as {"orders": 1767225600000}."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or (streams and set(value) != set(streams)):
        raise OptionError(f"option {name} needs JSON with a time for each of {_names(streams)}, not {text!r}")
    return {stream: moment(name, str(given)) for stream, given in value.items()}


def _names(streams: tuple[str, ...]) -> str:
    return ", ".join(streams) or "the streams that are found"


def _check_positions(options: NamedOptions, starting: Position, ending: Position, *, streaming: bool) -> None:
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if streaming and name in options:
            raise OptionError(f"option {name} needs a batch read: a streaming query has no end")
    if not streaming and LATEST in _places(starting):
        raise OptionError("option startingOffsets must not be latest in a batch read: there would be nothing to read")
    if EARLIEST in _places(ending):
        raise OptionError("option endingOffsets must not be earliest: there would be nothing to read")


def _places(position: Position) -> list[Place]:
    return list(position.values()) if isinstance(position, Mapping) else [position]


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= min(_WORDS)
