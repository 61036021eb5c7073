"""The filters of a source (1.0, 3.5.8): which messages a link receives, and where in a stream it starts.

| filter | value | a message matches if |
|---|---|---|
| `apache.org:selector-filter:string` | string | the selector of JMS is true |
| `amqp:sql-filter` | string | the SQL filter expression is true |
| `amqp:properties-filter` | map of symbols | each field has the value |
| `amqp:application-properties-filter` | map of strings | each property has the value |
| `apache.org:legacy-amqp-direct-binding:string` | string | its subject is the string |
| `apache.org:legacy-amqp-topic-binding:string` | string | its subject matches the pattern |
| `apache.org:legacy-amqp-headers-binding:map` | map | it has all or any of the pairs |
| `rabbitmq:stream-offset-spec` | see `Stream.subscribe` | (streams) the offset at which the link starts |
| `rabbitmq:stream-filter` | string or list | (streams) its annotation `x-stream-filter-value` is among them |
| `rabbitmq:stream-match-unfiltered` | boolean | (streams) so does one without this annotation |

In the two maps the string `&p:x` matches all strings that begin with x, `&s:x` all that end with it, and `&&x` matches
`&x`. Null matches an absent field. The binding filters select messages of a queue; for an exchange they become bindings
of the link's own queue. There is no no-local filter: a message does not record which connection sent it.
"""

from datetime import UTC, datetime
from typing import Final

from mypy_extensions import i64, mypyc_attr

from waybill.engine.amqp10.selector.expression import Expression
from waybill.engine.amqp10.selector.parser import parse_selector, parse_sql
from waybill.engine.amqp10.selector.tokens import SelectorError
from waybill.engine.amqp10.view import PROPERTY_FIELDS, MessageView, plain
from waybill.model.exchange import same_value
from waybill.model.message import Message
from waybill.model.queue_arguments import parse_age_ms
from waybill.wire.amqp10 import filters as names
from waybill.wire.amqp10.types import Array, Described, Symbol, Timestamp

QUEUE: Final = "queue"
STREAM: Final = "stream"
EXCHANGE: Final = "exchange"

INVALID_FIELD: Final = "amqp:invalid-field"
PAIRS_MAX: Final = 256
PAIRS_PER_UNIT_BITS: Final = 3
CHARACTERS_PER_UNIT_BITS: Final = 7
"""Evaluating 128 characters of a selector costs a unit."""
STREAM_FILTER_ANNOTATION: Final = "x-stream-filter-value"

_BINDINGS: Final = frozenset({names.DIRECT_BINDING, names.TOPIC_BINDING, names.HEADERS_BINDING})
_STREAM_ONLY: Final = frozenset({names.STREAM_OFFSET, names.STREAM_FILTER, names.STREAM_MATCH_UNFILTERED})
_OFFSET_WORDS: Final = frozenset({"first", "last", "next"})


class FilterError(ValueError):
    """A filter with an invalid value."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.condition = INVALID_FIELD


@mypyc_attr(allow_interpreted_subclasses=True)
class Filter:
    """A test of messages."""

    def matches(self, view: MessageView) -> bool:
        raise NotImplementedError


class FilterSet:
    """The filters of one link. `in_force`: those that are known, as the answering attach returns them.

    `bindings`: routing keys and arguments for the queue of a link from an exchange. `stream_offset`: what
    `Stream.subscribe` takes, None if not given. `units`: what a test of any message costs besides a unit.
    """

    def __init__(self) -> None:
        self.in_force: dict[str, object] = {}
        self.filters: list[Filter] = []
        self.bindings: list[tuple[str, dict[str, object]]] = []
        self.stream_offset: object | None = None
        self.units: i64 = 0
        self._view = MessageView()

    def matches(self, message: Message, content: bytes) -> bool:
        """Whether `message` matches all filters. `content`: its content in the encoding of 1.0."""
        view = self._view
        view.show(message, content)
        for each in self.filters:  # noqa: SIM110 - a generator is slow when compiled
            if not each.matches(view):
                return False
        return True

    def last_units(self) -> i64:
        """The cost of the last test."""
        return self.units + self._view.units


def supported_filters(kind: str) -> tuple[Symbol, ...]:
    """The filter types that a source of that kind supports: its capabilities (3.5.8)."""
    found = [Symbol(name) for name in sorted({*names.NAMES.values()} - {names.NO_LOCAL})]
    if kind == STREAM:
        found += [Symbol(name) for name in sorted(_STREAM_ONLY)]
    return tuple(found)


def read_filters(requested: dict[str, object] | None, kind: str) -> FilterSet:
    """Read the filters of a source of that kind (QUEUE, STREAM, EXCHANGE). Unknown filters are ignored.

    Raises FilterError.
    """
    filter_set = FilterSet()
    stream_values: list[str] | None = None
    match_unfiltered = False
    for key, value in (requested or {}).items():
        if value is None:
            continue
        if not isinstance(value, Described):
            raise FilterError(f"the filter {key} is not a described value")
        name = names.filter_name(value)
        if name in _STREAM_ONLY and kind != STREAM:
            continue
        if name == names.STREAM_FILTER:
            stream_values = _stream_values(value.value)
        elif name == names.STREAM_MATCH_UNFILTERED:
            if not isinstance(value.value, bool):
                raise FilterError("rabbitmq:stream-match-unfiltered needs a boolean")
            match_unfiltered = value.value
        elif not _take(filter_set, name, value.value, kind):
            continue
        filter_set.in_force[key] = value
    if stream_values is not None:
        filter_set.filters.append(_StreamFilter(stream_values, match_unfiltered=match_unfiltered))
    return filter_set


def _take(filter_set: FilterSet, name: str, value: object, kind: str) -> bool:
    """Add a filter. False if it is unknown."""
    if name in _BINDINGS and kind == EXCHANGE:
        filter_set.bindings.append(_binding(name, value))
    elif name in {names.SELECTOR, names.SQL}:
        filter_set.filters.append(_ConditionFilter(_condition(name, value)))
        filter_set.units += len(_text(name, value)) >> CHARACTERS_PER_UNIT_BITS
    elif name == names.DIRECT_BINDING:
        filter_set.filters.append(_SubjectFilter(_text(name, value)))
    elif name == names.TOPIC_BINDING:
        filter_set.filters.append(_TopicFilter(_text(name, value)))
    elif name == names.HEADERS_BINDING:
        pairs = _pairs(name, value)
        filter_set.filters.append(_HeadersFilter(pairs))
        filter_set.units += len(pairs) >> PAIRS_PER_UNIT_BITS
    elif name == names.PROPERTIES:
        pairs = _pairs(name, value)
        if not PROPERTY_FIELDS.issuperset([field.replace("-", "_") for field in pairs]):
            return False
        filter_set.filters.append(_PropertiesFilter(pairs))
        filter_set.units += len(pairs) >> PAIRS_PER_UNIT_BITS
    elif name == names.APPLICATION_PROPERTIES:
        pairs = _pairs(name, value)
        filter_set.filters.append(_ApplicationPropertiesFilter(pairs))
        filter_set.units += len(pairs) >> PAIRS_PER_UNIT_BITS
    elif name == names.STREAM_OFFSET:
        filter_set.stream_offset = _stream_offset(value)
    else:
        return False
    return True


# --- values ---


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise FilterError(f"{name} needs a string, not {type(value).__name__}")
    return str(value)


def _condition(name: str, value: object) -> Expression:
    text = _text(name, value)
    try:
        return parse_sql(text) if name == names.SQL else parse_selector(text)
    except SelectorError as error:
        raise FilterError(f"{name}: {error}") from None


def _pairs(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise FilterError(f"{name} needs a map, not {type(value).__name__}")
    if len(value) > PAIRS_MAX:
        raise FilterError(f"{name}: more than {PAIRS_MAX} pairs")
    pairs: dict[str, object] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise FilterError(f"{name}: a key is a string or a symbol, not {type(key).__name__}")
        if item is not None and plain(item) is None:
            raise FilterError(f"{name}: {key} needs a simple value, not {type(item).__name__}")
        pairs[str(key)] = plain(item)
    return pairs


def _binding(name: str, value: object) -> tuple[str, dict[str, object]]:
    if name == names.HEADERS_BINDING:
        return "", _pairs(name, value)
    return _text(name, value), {}


def _stream_values(value: object) -> list[str]:
    items = list(value.items) if isinstance(value, Array) else value
    if isinstance(items, str):
        items = [items]
    if not isinstance(items, list) or len(items) > PAIRS_MAX:
        raise FilterError("rabbitmq:stream-filter needs a string or a list of strings")
    return [_text(names.STREAM_FILTER, item) for item in items]


def _stream_offset(value: object) -> object:
    if isinstance(value, Timestamp):
        try:
            return datetime.fromtimestamp(int(value) / 1000.0, UTC)
        except (ValueError, OverflowError, OSError):
            raise FilterError(f"{names.STREAM_OFFSET}: the time is out of range") from None
    if isinstance(value, str):
        text = str(value)
        if text in _OFFSET_WORDS or parse_age_ms(text) is not None:
            return text
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return int(value)
    raise FilterError(f"{names.STREAM_OFFSET}: {value!r} is not an offset, time, interval, first, last or next")


# --- tests ---


class _ConditionFilter(Filter):
    def __init__(self, condition: Expression) -> None:
        self.condition = condition

    def matches(self, view: MessageView) -> bool:
        return self.condition.evaluate(view) is True


class _SubjectFilter(Filter):
    def __init__(self, subject: str) -> None:
        self.subject = subject

    def matches(self, view: MessageView) -> bool:
        return view.property_value("subject") == self.subject


class _TopicFilter(Filter):
    def __init__(self, pattern: str) -> None:
        self.words = pattern.split(".") if pattern else []
        self.takes_all = pattern == "#"

    def matches(self, view: MessageView) -> bool:
        subject = view.property_value("subject")
        if not isinstance(subject, str):
            return self.takes_all
        return _fits(self.words, subject.split(".") if subject else [])


def _fits(pattern: list[str], words: list[str]) -> bool:
    """Whether the words match. All possible positions in the pattern are followed together, without backtracking."""
    places = _with_skipped(pattern, {0})
    for word in words:
        following: set[int] = set()
        for place in places:
            if place == len(pattern):
                continue
            if pattern[place] == "#":
                following.add(place)
            elif pattern[place] == "*" or pattern[place] == word:
                following.add(place + 1)
        places = _with_skipped(pattern, following)
    return len(pattern) in places


def _with_skipped(pattern: list[str], places: set[int]) -> set[int]:
    """The positions, and those after each `#`, which may match no word."""
    for place in range(len(pattern)):
        if place in places and pattern[place] == "#":
            places.add(place + 1)
    return places


class _HeadersFilter(Filter):
    """Matches as a headers exchange does: keys that begin with `x-` are ignored, and null only asks for presence."""

    def __init__(self, pairs: dict[str, object]) -> None:
        mode = pairs.get("x-match", "all")
        if not isinstance(mode, str) or mode not in {"all", "any"}:
            raise FilterError("x-match is all or any")
        self.wants_all = mode == "all"
        self.pairs = {key: value for key, value in pairs.items() if not key.startswith("x-")}

    def matches(self, view: MessageView) -> bool:
        properties = view.application_properties()
        for key, wanted in self.pairs.items():
            is_matched = key in properties and (wanted is None or same_value(plain(properties[key]), wanted))
            if is_matched != self.wants_all:
                return is_matched
        return self.wants_all


class _PropertiesFilter(Filter):
    def __init__(self, pairs: dict[str, object]) -> None:
        self.tests = [(name.replace("-", "_"), _Wanted(value)) for name, value in pairs.items()]

    def matches(self, view: MessageView) -> bool:
        for name, wanted in self.tests:  # noqa: SIM110 - see `FilterSet.matches`
            if not wanted.is_met_by(view.property_value(name)):
                return False
        return True


class _ApplicationPropertiesFilter(Filter):
    def __init__(self, pairs: dict[str, object]) -> None:
        self.tests = [(name, _Wanted(value)) for name, value in pairs.items()]

    def matches(self, view: MessageView) -> bool:
        properties = view.application_properties()
        for name, wanted in self.tests:  # noqa: SIM110 - see `FilterSet.matches`
            if not wanted.is_met_by(plain(properties.get(name))):
                return False
        return True


class _Wanted:
    """A value to compare with, or the start or end of a string."""

    def __init__(self, value: object) -> None:
        self.value = value
        self.prefix = ""
        self.suffix = ""
        self.is_part = False
        if not isinstance(value, str) or not value.startswith("&"):
            return
        if value.startswith("&&"):
            self.value = value[1:]
        elif value.startswith("&p:"):
            self.prefix = value[3:]
            self.is_part = True
        elif value.startswith("&s:"):
            self.suffix = value[3:]
            self.is_part = True
        else:
            raise FilterError(f"{value!r} begins with & but not with &p:, &s: or &&")

    def is_met_by(self, value: object) -> bool:
        if self.is_part:
            return isinstance(value, str) and value.startswith(self.prefix) and value.endswith(self.suffix)
        return same_value(value, self.value)


class _StreamFilter(Filter):
    def __init__(self, values: list[str], *, match_unfiltered: bool) -> None:
        self.values = frozenset(values)
        self.match_unfiltered = match_unfiltered

    def matches(self, view: MessageView) -> bool:
        value = view.annotations().get(Symbol(STREAM_FILTER_ANNOTATION))
        return value in self.values if isinstance(value, str) else self.match_unfiltered
