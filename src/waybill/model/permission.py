"""What a user may do in a virtual host: three patterns over the names of exchanges and queues.

`configure` rules declaring and deleting, `write` publishing and being bound to, `read` consuming, purging and being
bound from. A pattern is searched in the name, as RabbitMQ does: anchor it to match whole names. An empty one matches no
name but the empty one.
"""

import re

from waybill.model.errors import AccessRefused, InvalidArgument

CONFIGURE = "configure"
WRITE = "write"
READ = "read"


class Permission:
    """The rights of one user in one virtual host. Raises `InvalidArgument` for a pattern that does not compile."""

    def __init__(self, configure: str, write: str, read: str) -> None:
        self.patterns = {CONFIGURE: configure, WRITE: write, READ: read}
        self._compiled = {action: _compile(pattern) for action, pattern in self.patterns.items()}

    def check(self, action: str, kind: str, name: str, virtual_host: str, user: str) -> None:
        """Raises `AccessRefused` unless `action` is allowed on the `kind` ("queue" or "exchange") called `name`."""
        subject = name or "amq.default"
        if self.patterns[action] == ".*" or self._compiled[action].search(subject):
            return
        raise AccessRefused(f"{action} access to {kind} '{name}' in vhost '{virtual_host}' refused for user '{user}'")


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern or "^$")
    except re.error as error:
        raise InvalidArgument(f"'{pattern}' is not a regular expression: {error}") from None
