"""The permissions of a user in a virtual host: patterns over the names of exchanges and queues, and over routing keys.

`configure` is for declaring and deleting, `write` for publishing and being bound to, `read` for consuming, purging and
being bound from. As in RabbitMQ, a pattern may match anywhere in the name: anchor it to match whole names. An empty
pattern matches no name.
"""

from typing import Final

from waybill.model.errors import AccessRefused
from waybill.model.pattern import Pattern

CONFIGURE: Final = "configure"
WRITE: Final = "write"
READ: Final = "read"
NOTHING: Final = "^$"
DEFAULT_EXCHANGE: Final = "amq.default"


class Permission:
    """The permissions of one user in one virtual host. Raises `InvalidArgument` for an invalid pattern."""

    def __init__(self, configure: str, write: str, read: str) -> None:
        self.patterns = {CONFIGURE: configure, WRITE: write, READ: read}
        self._compiled = {action: Pattern(pattern or NOTHING) for action, pattern in self.patterns.items()}

    def check(self, action: str, kind: str, name: str, virtual_host: str, user: str) -> None:
        """Raises `AccessRefused` unless `action` is allowed on the `kind` ("queue" or "exchange") called `name`."""
        if self.patterns[action] == ".*" or self._compiled[action].matches(name or DEFAULT_EXCHANGE):
            return
        raise AccessRefused(f"{action} access to {kind} '{name}' in vhost '{virtual_host}' refused for user '{user}'")


class TopicPermission:
    """Which routing keys one user may publish with (`write`) and bind with (`read`) at one topic exchange.

    `{username}` and `{vhost}` in a pattern stand for these names, taken literally.
    """

    def __init__(self, write: str, read: str, user: str, virtual_host: str) -> None:
        self.patterns = {WRITE: write, READ: read}
        self._compiled = {
            action: Pattern(_filled_in(pattern, user, virtual_host) or NOTHING)
            for action, pattern in self.patterns.items()
        }

    def check(self, action: str, routing_key: str, exchange: str, virtual_host: str, user: str) -> None:
        """Raises `AccessRefused` unless `action` is allowed with `routing_key`."""
        if not self._compiled[action].matches(routing_key):
            raise AccessRefused(
                f"{action} access to topic '{routing_key}' in exchange '{exchange}' in vhost '{virtual_host}' refused "
                f"for user '{user}'"
            )


def _filled_in(pattern: str, user: str, virtual_host: str) -> str:
    return pattern.replace("{username}", _literally(user)).replace("{vhost}", _literally(virtual_host))


def _literally(name: str) -> str:
    return "".join(character if character.isalnum() else "\\" + character for character in name)
