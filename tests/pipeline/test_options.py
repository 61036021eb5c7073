from datetime import UTC, datetime

import pytest

from waybill.pipeline.named_options import OptionError, address
from waybill.pipeline.options import parse_options

URI = "amqp://user:secret@broker.example:5673/%2Fojs"


def test_kafka_names_are_understood_in_any_case() -> None:
    options = parse_options(
        {"URI": URI, "subscribe": "a, b", "startingoffsets": '{"a": 3, "b": 0}', "MAXOFFSETSPERTRIGGER": "10"},
        default_stream=None,
        streaming=True,
    )
    assert options.streams == ("a", "b")
    assert options.starting == {"a": 3, "b": 0}
    assert options.max_offsets_per_trigger == 10


def test_a_stream_starts_at_its_end_and_a_batch_at_its_beginning() -> None:
    assert parse_options({"uri": URI}, default_stream="s", streaming=True).starting == "latest"
    assert parse_options({"uri": URI}, default_stream="s", streaming=False).starting == "earliest"


def test_a_number_is_the_offset_of_a_single_stream() -> None:
    options = parse_options({"uri": URI, "stream": "s", "endingOffsets": "7"}, default_stream=None, streaming=False)
    assert options.ending == {"s": 7}


def test_each_stream_has_a_place_of_its_own() -> None:
    given = {"uri": URI, "stream": "a,b,c", "startingOffsets": '{"a": -2, "b": -1, "c": 7}'}
    options = parse_options(given, default_stream=None, streaming=True)
    assert options.starting == {"a": "earliest", "b": "latest", "c": 7}
    given = {
        "uri": URI,
        "stream": "a,b",
        "startingOffsets": "earliest",
        "endingOffsetsByTimestamp": '{"a": 1767225600000, "b": "2026-01-01T01:00:00+01:00"}',
    }
    options = parse_options(given, default_stream=None, streaming=False)
    assert options.ending == dict.fromkeys("ab", datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option uri is required"),
        ({"uri": URI, "stream": "s", "startingOfsets": "1"}, "did you mean 'startingOffsets'"),
        ({"uri": URI, "stream": "s", "pollTimeoutMs": "soon"}, "pollTimeoutMs must be a whole number"),
        ({"uri": URI, "stream": "s", "prefetch": "0"}, "prefetch must be a whole number"),
        ({"uri": URI, "stream": "s", "failOnDataLoss": "yes"}, "failOnDataLoss must be true or false"),
        ({"uri": URI, "stream": "s", "fetchOffset.numRetries": "-1"}, "numRetries must be a whole number"),
        ({"uri": URI, "stream": "s", "startingOffsets": "latest"}, "must not be latest in a batch read"),
        ({"uri": URI, "stream": "s", "endingOffsets": "earliest"}, "must not be earliest"),
        ({"uri": URI, "stream": "s", "startingOffsets": "soon"}, "earliest, latest or JSON"),
        ({"uri": URI, "stream": "s", "startingOffsets": '{"t": 1}'}, "an offset of 0 or more for each of s"),
        ({"uri": URI, "stream": "s", "startingOffsets": "-3"}, "an offset of 0 or more"),
        ({"uri": URI, "stream": "s", "startingOffsets": "-1"}, "must not be latest in a batch read"),
        ({"uri": URI, "stream": "s,t", "endingOffsets": '{"s": 4, "t": -2}'}, "must not be earliest"),
        ({"uri": URI, "stream": "s,t", "startingOffsetsByTimestamp": '{"s": 4}'}, "a time for each of s, t"),
        ({"uri": URI, "stream": "s", "startingOffsetsByTimestamp": '{"s": "soon"}'}, "milliseconds of Unix time"),
        ({"uri": URI, "stream": "s", "startingOffsetsByTimestamp": "{"}, "a time for each of s"),
        ({"uri": URI, "stream": "s", "subscribe": "s"}, "cannot be used together"),
        ({"uri": URI, "stream": " , "}, "option stream is required"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options(given, default_stream=None, streaming=False)


def test_a_streaming_query_has_no_end() -> None:
    with pytest.raises(OptionError, match="endingOffsets needs a batch read"):
        parse_options({"uri": URI, "stream": "s", "endingOffsets": "9"}, default_stream=None, streaming=True)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        (URI, "broker.example:5673/%2Fojs"),
        ("amqps://u:secret@host", "host:5671/%2F"),
        ("amqp://[::1]/v", "[::1]:5672/v"),
        ("amqp://u:secret@host:secret/v", "the broker of an invalid URI"),
    ],
)
def test_an_address_never_holds_the_password(uri: str, shown: str) -> None:
    assert address(uri) == shown
