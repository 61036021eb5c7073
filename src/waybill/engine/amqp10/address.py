"""Addresses of nodes: RabbitMQ 4's, version 2, and plain names.

| address | as a source | as a target, or `to` of a message |
|---|---|---|
| `/queues/:queue` | that queue | the same, by the default exchange |
| `/exchanges/:exchange/:key` | a queue of the link's own, bound by the key | that exchange with that routing key |
| `/exchanges/:exchange` | the same, bound by the link's filters | with the message's subject as routing key |
| `/management`, `$management` | answers | requests |
| any other that does not begin with `/` | the queue, else the exchange, of that name | the same |

Names are percent-encoded (RFC 3986) in addresses that begin with `/`, and taken as they are in plain ones. Version 1 of
the addresses (`/queue/`, `/topic/`, `/exchange/`, `/amq/queue/`) is refused: the error names what to write instead.
"""

from typing import Final
from urllib.parse import quote

QUEUE: Final = "queue"
EXCHANGE: Final = "exchange"
PLAIN: Final = "plain"
MANAGEMENT: Final = "management"

MANAGEMENT_ADDRESSES: Final = frozenset({"/management", "$management"})

QUEUES_PREFIX: Final = "/queues/"
_EXCHANGES: Final = "/exchanges/"
_DEFAULT_EXCHANGE_NAME: Final = "amq.default"
_VERSION_1: Final[dict[str, str]] = {
    "/queue/": "/queues/:queue",
    "/amq/queue/": "/queues/:queue",
    "/exchange/": "/exchanges/:exchange/:key",
    "/topic/": "/exchanges/amq.topic/:key",
}
_NAME_OCTETS_MAX: Final = 255
_HEXADECIMAL: Final = frozenset("0123456789abcdefABCDEF")


class InvalidAddress(ValueError):
    """An invalid address; `str()` says why."""


class NodeAddress:
    """The node of an address. `kind` is one of the constants above. `key` is the routing key, None for the subject."""

    def __init__(self, kind: str, name: str, key: str | None) -> None:
        self.kind = kind
        self.name = name
        self.key = key


def parse_address(text: str) -> NodeAddress:
    """Raises `InvalidAddress`."""
    if text in MANAGEMENT_ADDRESSES:
        return NodeAddress(MANAGEMENT, text, None)
    if text.startswith(QUEUES_PREFIX):
        return NodeAddress(QUEUE, _name(text, text[len(QUEUES_PREFIX) :]), None)
    if text.startswith(_EXCHANGES):
        exchange, slash, key = text[len(_EXCHANGES) :].partition("/")
        name = _name(text, exchange)
        if name == _DEFAULT_EXCHANGE_NAME:
            raise InvalidAddress(f"{text!r}: the default exchange is addressed as /queues/:queue")
        return NodeAddress(EXCHANGE, name, _decoded(text, key) if slash else None)
    if text.startswith("/"):
        for prefix, instead in _VERSION_1.items():
            if text.startswith(prefix):
                raise InvalidAddress(f"{text!r} is an address of version 1: write {instead}")
        raise InvalidAddress(f"{text!r} is neither /queues/:queue nor /exchanges/:exchange/:key")
    if not text:
        raise InvalidAddress("an empty address names no node")
    return NodeAddress(PLAIN, _checked(text, text), None)


def queue_address(name: str) -> str:
    """The address of a queue. Octets of the name that are not UTF-8 are encoded too."""
    return QUEUES_PREFIX + quoted(name)


def exchange_address(name: str, key: str | None) -> str:
    """The address of an exchange, with that routing key if there is one."""
    return _EXCHANGES + quoted(name) + ("" if key is None else "/" + quoted(key))


def quoted(name: str) -> str:
    """Encode a name as one segment of a path."""
    return quote(name.encode("utf-8", "surrogateescape"), safe="")


def unquoted(segment: str) -> str:
    """Decode the name in a segment of a path. Raises ValueError."""
    if "/" in segment:
        raise ValueError("a slash in a name is written as %2F")
    octets = bytearray()
    position = 0
    while position < len(segment):
        character = segment[position]
        if character == "%":
            digits = segment[position + 1 : position + 3]
            if len(digits) != 2 or not _HEXADECIMAL.issuperset(digits):
                raise ValueError("% is not followed by two hexadecimal digits")
            octets.append(int(digits, 16))
            position += 3
        else:
            octets += character.encode("utf-8", "surrogateescape")
            position += 1
    # In 0-9-1 the names of queues and exchanges are octets. Those that are not UTF-8 become surrogates, as there.
    return octets.decode("utf-8", "surrogateescape")


def _name(text: str, segment: str) -> str:
    name = _decoded(text, segment)
    if not name:
        raise InvalidAddress(f"{text!r} names nothing")
    return name


def _decoded(text: str, segment: str) -> str:
    try:
        return _checked(text, unquoted(segment))
    except ValueError as error:
        if isinstance(error, InvalidAddress):
            raise
        raise InvalidAddress(f"{text!r}: {error}") from None


def _checked(text: str, name: str) -> str:
    if len(name.encode("utf-8", "surrogateescape")) > _NAME_OCTETS_MAX:
        raise InvalidAddress(f"{text[:80]!r}...: a name has at most {_NAME_OCTETS_MAX} octets")
    return name
