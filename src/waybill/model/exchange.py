"""Exchanges: each type is a small class that says which bindings a message matches. Exchanges never store messages."""

from typing import Final

from mypy_extensions import i64

from waybill.model.binding import Binding
from waybill.model.declaration_limits import size_of
from waybill.model.errors import InvalidArgument, too_many_steps
from waybill.model.queue import Queue
from waybill.model.topic_trie import TopicTrie

NESTED_STEP_BITS: Final = 6


class Exchange:
    """A routing entity of a virtual host. Types derive from it and keep the index that their matching needs.

    `alternate`: the name of the exchange that gets what this one cannot route, or None. `onward`: the bindings from
    here to other exchanges; `incoming`: those from other exchanges to here. `waiting`: where messages with a delay wait
    until they are due, in an exchange that `delays`. `hashed_property`: the property of a message that is matched in
    place of its routing key; empty for none.
    """

    type: str = ""
    routes_by_headers: bool = False
    delays: bool = False

    def __init__(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments
        self.bindings: dict[str, Binding] = {}
        alternate = arguments.get("alternate-exchange")
        if alternate is not None and not isinstance(alternate, str):
            raise InvalidArgument("invalid arg 'alternate-exchange': must be a string")
        self.alternate: str | None = alternate
        self.onward: dict[str, Binding] = {}
        self.incoming: dict[str, Binding] = {}
        self.waiting: Queue | None = None
        self.hashed_property = ""
        self.footprint: i64 = 0
        # See `routed`.
        self.published_in: i64 = 0
        self.published_out: i64 = 0
        # The cost of the last match, without the bindings that it found.
        self.steps = 0

    def routed(self, messages: i64, copies: i64) -> None:
        """Count messages that were published here, and the copies that queues get of them."""
        self.published_in += messages
        self.published_out += copies

    def check(self, binding: Binding) -> None:
        """Raise an error for an impossible binding. Not called by recovery: stored bindings have been checked."""

    def add(self, binding: Binding) -> None:
        self.bindings[binding.key] = binding

    def remove(self, binding: Binding) -> None:
        del self.bindings[binding.key]

    def match(self, routing_key: str, headers: dict[str, object], steps_max: int) -> list[Binding]:
        """The bindings that a message with this key and these headers matches.

        Raises `PreconditionFailed` if it would take more than `steps_max` steps.
        """
        raise NotImplementedError


class DirectExchange(Exchange):
    """Matches if the binding key equals the routing key."""

    type = "direct"

    def __init__(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        super().__init__(name, durable, auto_delete, internal, arguments)
        self._by_key: dict[str, dict[str, Binding]] = {}

    def add(self, binding: Binding) -> None:
        super().add(binding)
        self._by_key.setdefault(binding.routing_key, {})[binding.key] = binding

    def remove(self, binding: Binding) -> None:
        super().remove(binding)
        same_key = self._by_key[binding.routing_key]
        del same_key[binding.key]
        if not same_key:
            del self._by_key[binding.routing_key]

    def match(self, routing_key: str, headers: dict[str, object], steps_max: int) -> list[Binding]:
        return list(self._by_key.get(routing_key, {}).values())


class FanoutExchange(Exchange):
    """Matches always."""

    type = "fanout"

    def match(self, routing_key: str, headers: dict[str, object], steps_max: int) -> list[Binding]:
        return list(self.bindings.values())


class TopicExchange(Exchange):
    """Matches if the routing key fits the binding's pattern of words."""

    type = "topic"

    def __init__(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        super().__init__(name, durable, auto_delete, internal, arguments)
        self._trie = TopicTrie()

    def add(self, binding: Binding) -> None:
        super().add(binding)
        self._trie.add(binding)

    def remove(self, binding: Binding) -> None:
        super().remove(binding)
        self._trie.remove(binding)

    def match(self, routing_key: str, headers: dict[str, object], steps_max: int) -> list[Binding]:
        found = self._trie.match(routing_key, steps_max)
        self.steps = self._trie.steps
        return found


class HeadersExchange(Exchange):
    """Matches by the binding's arguments: all or any of the pairs, depending on `x-match`.

    A pair without a value asks only for the header's presence. Names that begin with `x-` are not compared unless
    `x-match` is `all-with-x` or `any-with-x` (as in RabbitMQ).
    """

    type = "headers"
    routes_by_headers = True

    def add(self, binding: Binding) -> None:
        mode = binding.arguments.get("x-match", "all")
        if not isinstance(mode, str) or mode not in {"all", "any", "all-with-x", "any-with-x"}:
            raise InvalidArgument(f"Invalid x-match field value {mode!r}; expected all, any, all-with-x, or any-with-x")
        super().add(binding)
        binding.steps = 1 + (len(binding.arguments) >> 1)
        for value in binding.arguments.values():
            if isinstance(value, (list, dict)):
                # Equal up to their last item, they are compared item by item.
                binding.steps += size_of(value) >> NESTED_STEP_BITS

    def match(self, routing_key: str, headers: dict[str, object], steps_max: int) -> list[Binding]:
        found: list[Binding] = []
        steps: i64 = len(headers) >> 2
        for binding in self.bindings.values():
            steps += binding.steps
            if steps > steps_max:
                raise too_many_steps(steps_max)
            if _headers_match(binding.arguments, headers):
                found.append(binding)
        self.steps = int(steps)
        return found


def _headers_match(arguments: dict[str, object], headers: dict[str, object]) -> bool:
    mode = str(arguments.get("x-match", "all"))
    with_x = mode.endswith("-with-x")
    wants_all = mode.startswith("all")
    for name, wanted in arguments.items():
        if name == "x-match" or (name.startswith("x-") and not with_x):
            continue
        matches = name in headers and (wanted is None or same_value(headers[name], wanted))
        if matches and not wants_all:
            return True
        if not matches and wants_all:
            return False
    return wants_all


def same_value(value: object, wanted: object) -> bool:
    """Whether two values of headers are equal: True == 1 in Python, but a boolean field is not a number."""
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


PLAIN_TYPES: Final[dict[str, type[Exchange]]] = {
    "direct": DirectExchange,
    "fanout": FanoutExchange,
    "topic": TopicExchange,
    "headers": HeadersExchange,
}
