"""The resources of the management node. Paths and bodies are those of RabbitMQ 4.

| | | |
|---|---|---|
| PUT | `/queues/:queue` | declare: 201 if it is new, 200 if it exists, 409 if it exists with other properties |
| GET | `/queues/:queue` | 200 |
| DELETE | `/queues/:queue` | 200 with `message_count` |
| DELETE | `/queues/:queue/messages` | purge: 200 with `message_count` |
| PUT, GET, DELETE | `/exchanges/:exchange` | 204 (PUT, DELETE), 200 (GET) |
| POST | `/bindings` | bind: 204 |
| GET | `/bindings?src=...&dstq=...&key=...` | 200 with a list |
| DELETE | `/bindings/src=...;dstq=...;key=...;args=...` | unbind: 204 |

Names are percent-encoded. For a bound exchange `dste` takes the place of `dstq`. `args` is empty for a binding without
arguments, otherwise the one in `location` of the listed binding.
"""

from datetime import UTC, datetime, timedelta
from operator import index
from typing import Final

from xxhash import xxh3_64_hexdigest

from waybill.engine.access import check_permission, check_topic
from waybill.engine.amqp10.address import quoted, unquoted
from waybill.engine.host import Host, User
from waybill.model.binding import EXCHANGE, QUEUE, Binding
from waybill.model.errors import AccessRefused, NotAllowed
from waybill.model.exchange import Exchange
from waybill.model.queue import Queue
from waybill.model.virtual_host import VirtualHost
from waybill.wire.amqp091.field_table import EPOCH
from waybill.wire.amqp10 import codes
from waybill.wire.amqp10.types import Array, Timestamp, UInt, ULong

OK: Final = 200
CREATED: Final = 201
NO_CONTENT: Final = 204
BAD_REQUEST: Final = 400
NOT_FOUND: Final = 404
METHOD_NOT_ALLOWED: Final = 405

GET: Final = "GET"
PUT: Final = "PUT"
POST: Final = "POST"
DELETE: Final = "DELETE"

_RESERVED_PREFIX: Final = "amq."
_MESSAGES: Final = "messages"
_NAME_OCTETS_MAX: Final = 255
LISTED_MAX: Final = 1000
"""Bindings of one list, which differ in nothing but their arguments: encoding each takes 10 us."""
LISTED_UNITS: Final = 4
_EXAMINED_PER_UNIT_BITS: Final = 4


class Failure(Exception):
    """An invalid request; `str()` explains it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Answer:
    """The status and body of a response."""

    def __init__(self, status: int, body: object = None) -> None:
        self.status = status
        self.body = body


class Resources:
    """See `management.Management`."""

    def __init__(self, host: Host, user: User, virtual_host: VirtualHost, connection: object) -> None:
        self.host = host
        self.user = user
        self.virtual_host = virtual_host
        self.connection = connection

    def answer(self, method: str, path: str, body: object) -> Answer:
        """Raises Failure, or an error of the model."""
        path, _, query = path.partition("?")
        segments = path.split("/")
        if len(segments) < 2 or segments[0] != "":
            raise Failure(BAD_REQUEST, f"{path!r} is not a path")
        kind = segments[1]
        rest = segments[2:]
        if kind == "queues" and len(rest) == 1:
            return self._queue(method, _name(rest[0]), body)
        if kind == "queues" and len(rest) == 2 and rest[1] == _MESSAGES:
            return self._messages(method, _name(rest[0]))
        if kind == "exchanges" and len(rest) == 1:
            return self._exchange(method, _name(rest[0]), body)
        if kind == "bindings" and not rest:
            return self._bindings(method, query, body)
        if kind == "bindings" and len(rest) == 1:
            return self._binding(method, rest[0])
        raise Failure(NOT_FOUND, f"there is no {path!r}")

    # --- queues ---

    def _queue(self, method: str, name: str, body: object) -> Answer:
        if method == PUT:
            return self._declare_queue(name, _fields(body))
        if method == GET:
            queue = self.virtual_host.queue(name, self.connection)
            queue.touch()
            return Answer(OK, self._queue_body(queue))
        if method == DELETE:
            self._check("configure", QUEUE, name)
            deletion = self.virtual_host.delete_queue(name, self.connection, if_unused=False, if_empty=False)
            if deletion is None:
                return Answer(OK, {"message_count": ULong(0)})
            count = self.virtual_host.queues[name].message_count
            self.virtual_host.runtime.begin(deletion)
            return Answer(OK, {"message_count": ULong(count)})
        raise _not_allowed(method)

    def _declare_queue(self, name: str, fields: dict[str, object]) -> Answer:
        durable = _flag(fields, "durable", default=True)
        exclusive = _flag(fields, "exclusive", default=False)
        auto_delete = _flag(fields, "auto_delete", default=False)
        arguments = _arguments(fields)
        virtual_host = self.virtual_host
        is_new = name not in virtual_host.queues
        if is_new and name.startswith(_RESERVED_PREFIX):
            raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        self._check("configure", QUEUE, name)
        dead_letter_exchange = arguments.get("x-dead-letter-exchange")
        if isinstance(dead_letter_exchange, str):
            self._check("read", QUEUE, name)
            self._check("write", EXCHANGE, dead_letter_exchange)
        alternate = arguments.get("x-alternate-exchange")
        if isinstance(alternate, str):
            self._check("read", QUEUE, name)
            self._check("write", EXCHANGE, alternate)
        limit = self.host.limits.queues_per_virtual_host_max
        if is_new and len(virtual_host.queues) >= limit:
            raise NotAllowed(f"too many queues: {limit} in this vhost")
        queue = virtual_host.declare_queue(
            name,
            durable=durable,
            auto_delete=auto_delete,
            exclusive_to=self.connection if exclusive else None,
            connection=self.connection,
            arguments=arguments,
        )
        return Answer(CREATED if is_new else OK, self._queue_body(queue))

    def _messages(self, method: str, name: str) -> Answer:
        if method != DELETE:
            raise _not_allowed(method)
        queue = self.virtual_host.queue(name, self.connection)
        self._check("read", QUEUE, name)
        return Answer(OK, {"message_count": ULong(queue.purge())})

    def _queue_body(self, queue: Queue) -> dict[object, object]:
        return {
            "message_count": ULong(queue.message_count),
            "consumer_count": UInt(len(queue.consumers)),
            "name": queue.name,
            "vhost": self.virtual_host.name,
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "exclusive": queue.owner is not None,
            "type": queue.policy.type,
            "arguments": _arguments_body(queue.arguments),
            "leader": self.host.name,
            "replicas": Array(codes.STRING_32, (self.host.name,)),
        }

    # --- exchanges ---

    def _exchange(self, method: str, name: str, body: object) -> Answer:
        if method == PUT:
            self._declare_exchange(name, _fields(body))
            return Answer(NO_CONTENT)
        if method == GET:
            return Answer(OK, _exchange_body(self.virtual_host.exchange(name), self.virtual_host.name))
        if method == DELETE:
            self._check("configure", EXCHANGE, name)
            deletion = self.virtual_host.delete_exchange(name, if_unused=False)
            if deletion is not None:
                self.virtual_host.runtime.begin(deletion)
            return Answer(NO_CONTENT)
        raise _not_allowed(method)

    def _declare_exchange(self, name: str, fields: dict[str, object]) -> None:
        type_name = fields.get("type", "direct")
        if not isinstance(type_name, str):
            raise Failure(BAD_REQUEST, "type is a string")
        durable = _flag(fields, "durable", default=True)
        auto_delete = _flag(fields, "auto_delete", default=False)
        internal = _flag(fields, "internal", default=False)
        arguments = _arguments(fields)
        self._check("configure", EXCHANGE, name)
        alternate = arguments.get("alternate-exchange")
        if isinstance(alternate, str):
            self._check("read", EXCHANGE, name)
            self._check("write", EXCHANGE, alternate)
        exchanges = self.virtual_host.exchanges
        limit = self.host.limits.exchanges_per_virtual_host_max
        if name not in exchanges and len(exchanges) >= limit:
            raise NotAllowed(f"too many exchanges: {limit} in this vhost")
        self.virtual_host.declare_exchange(
            name,
            str(type_name),
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
        )

    # --- bindings ---

    def _bindings(self, method: str, query: str, body: object) -> Answer:
        if method == POST:
            self._bind(_fields(body))
            return Answer(NO_CONTENT)
        if method != GET:
            raise _not_allowed(method)
        wanted = _parameters(query, "&")
        kind, destination = _destination(wanted)
        bindings = self._found(_parameter(wanted, "src"), kind, destination, _parameter(wanted, "key"))
        if len(bindings) > LISTED_MAX:
            raise Failure(BAD_REQUEST, f"a list has at most {LISTED_MAX} bindings, and these are {len(bindings)}")
        self.host.runtime.work_left -= LISTED_UNITS * len(bindings)
        return Answer(OK, [_binding_body(binding) for binding in bindings])

    def _bind(self, fields: dict[str, object]) -> None:
        source = _text(fields, "source")
        key = _text(fields, "binding_key")
        arguments = _arguments(fields)
        if "destination_queue" in fields:
            queue = self.virtual_host.queue(_text(fields, "destination_queue"), self.connection)
            self._check_binding(QUEUE, queue.name, source, key)
            self.virtual_host.bind_queue(queue, source, key, arguments)
        else:
            destination = _text(fields, "destination_exchange")
            self._check_binding(EXCHANGE, destination, source, key)
            self.virtual_host.bind_exchange(destination, source, key, arguments)

    def _binding(self, method: str, segment: str) -> Answer:
        if method != DELETE:
            raise _not_allowed(method)
        wanted = _parameters(segment, ";")
        kind, destination = _destination(wanted)
        source = _parameter(wanted, "src")
        key = _parameter(wanted, "key")
        digest = _parameter(wanted, "args")
        self._check_binding(kind, destination, source, key)
        if kind == QUEUE and destination in self.virtual_host.queues:
            self.virtual_host.queue(destination, self.connection)
        for binding in self._found(source, kind, destination, key):
            if _digest(binding) == digest:
                self.virtual_host.unbind(kind, destination, source, key, binding.arguments)
        return Answer(NO_CONTENT)

    def _found(self, source_name: str, kind: str, destination: str, key: str) -> list[Binding]:
        source = self.virtual_host.exchanges.get(source_name)
        if source is None:
            return []
        self.host.runtime.work_left -= len(source.bindings) >> _EXAMINED_PER_UNIT_BITS
        return [
            binding
            for binding in source.bindings.values()
            if binding.destination_kind == kind and binding.destination == destination and binding.routing_key == key
        ]

    def _check_binding(self, kind: str, destination: str, source: str, key: str) -> None:
        self._check("write", kind, destination)
        self._check("read", EXCHANGE, source)
        check_topic(self.user, self.virtual_host, "read", source, key)

    def _check(self, action: str, kind: str, name: str) -> None:
        check_permission(self.user, self.virtual_host, action, kind, name)


# --- requests ---


def _not_allowed(method: str) -> Failure:
    return Failure(METHOD_NOT_ALLOWED, f"{method[:20]!r} is not a method of this resource")


def _name(segment: str) -> str:
    try:
        name = unquoted(segment)
    except ValueError as error:
        raise Failure(BAD_REQUEST, f"{segment!r}: {error}") from None
    if not name or len(name.encode("utf-8", "surrogateescape")) > _NAME_OCTETS_MAX:
        raise Failure(BAD_REQUEST, f"a name has 1 to {_NAME_OCTETS_MAX} octets")
    return name


def _fields(body: object) -> dict[str, object]:
    if body is None:
        return {}
    if not isinstance(body, dict) or not all(isinstance(key, str) for key in body):
        raise Failure(BAD_REQUEST, "the body is a map with strings as keys")
    return {str(key): value for key, value in body.items()}


def _flag(fields: dict[str, object], name: str, *, default: bool) -> bool:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise Failure(BAD_REQUEST, f"{name} is a boolean")
    return value


def _text(fields: dict[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or len(value.encode()) > _NAME_OCTETS_MAX:
        raise Failure(BAD_REQUEST, f"{name} is a string of at most {_NAME_OCTETS_MAX} octets")
    return str(value)


def _arguments(fields: dict[str, object]) -> dict[str, object]:
    """Arguments in the form of the model: values without AMQP types."""
    value = fields.get("arguments")
    if value is None:
        return {}
    argument = _argument(value)
    if not isinstance(argument, dict):
        raise Failure(BAD_REQUEST, "arguments are a map with strings as keys")
    return argument


def _argument(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Timestamp):
        try:
            return datetime.fromtimestamp(int(value) // 1000, UTC)
        except (ValueError, OverflowError, OSError):
            raise Failure(BAD_REQUEST, "a time beyond the year 9999") from None
    if isinstance(value, int):
        # Not `int(value)`: compiled, that leaves a large one in its own class.
        return index(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (list, Array)):
        items = list(value.items) if isinstance(value, Array) else value
        return [_argument(item) for item in items]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {str(key): _argument(item) for key, item in value.items()}
    raise Failure(BAD_REQUEST, f"an argument of type {type(value).__name__}")


def _parameters(text: str, separator: str) -> dict[str, str]:
    """The `name=value` pairs of a query or a path segment."""
    parameters: dict[str, str] = {}
    for pair in text.split(separator):
        name, equals, value = pair.partition("=")
        if not equals or name in parameters:
            raise Failure(BAD_REQUEST, f"{pair!r} is not a name and a value, or appears twice")
        try:
            parameters[name] = unquoted(value)
        except ValueError as error:
            raise Failure(BAD_REQUEST, f"{pair!r}: {error}") from None
    return parameters


def _parameter(parameters: dict[str, str], name: str) -> str:
    value = parameters.get(name)
    if value is None:
        raise Failure(BAD_REQUEST, f"{name} is missing")
    return value


def _destination(parameters: dict[str, str]) -> tuple[str, str]:
    """The kind and name of the bound queue or exchange."""
    if "dstq" in parameters:
        return QUEUE, parameters["dstq"]
    return EXCHANGE, _parameter(parameters, "dste")


# --- responses ---


def _exchange_body(exchange: Exchange, virtual_host: str) -> dict[object, object]:
    return {
        "name": exchange.name,
        "vhost": virtual_host,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": _arguments_body(exchange.arguments),
    }


def _binding_body(binding: Binding) -> dict[object, object]:
    end = "destination_queue" if binding.destination_kind == QUEUE else "destination_exchange"
    parameter = "dstq" if binding.destination_kind == QUEUE else "dste"
    location = (
        f"/bindings/src={quoted(binding.source)};{parameter}={quoted(binding.destination)}"
        f";key={quoted(binding.routing_key)};args={_digest(binding)}"
    )
    return {
        "source": binding.source,
        end: binding.destination,
        "binding_key": binding.routing_key,
        "arguments": _arguments_body(binding.arguments),
        "location": location,
    }


def _digest(binding: Binding) -> str:
    """Identifies the arguments among bindings that differ in nothing else; empty without arguments."""
    return xxh3_64_hexdigest(binding.key.encode("utf-8", "surrogateescape")) if binding.arguments else ""


def _arguments_body(arguments: dict[str, object]) -> dict[object, object]:
    return {name: _value_body(value) for name, value in arguments.items()}


def _value_body(value: object) -> object:
    if isinstance(value, datetime):
        return Timestamp((value - EPOCH) // timedelta(milliseconds=1))
    if isinstance(value, list):
        return [_value_body(item) for item in value]
    if isinstance(value, dict):
        return {name: _value_body(item) for name, item in value.items()}
    if value is None or isinstance(value, (str, bool, int, float, bytes)):
        return value
    return str(value)
