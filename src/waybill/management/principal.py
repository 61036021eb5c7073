"""Who asks, and what the tags of a user allow.

- management: its own connections, and what lies in virtual hosts that it may enter
- policymaker: that, and policies and parameters of these virtual hosts
- monitoring: that of management, and everything of everybody, but to read
- administrator: everything
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from waybill.engine.access import check_permission
from waybill.engine.host import User
from waybill.management.errors import not_authorised
from waybill.model.permission import Permission
from waybill.model.virtual_host import VirtualHost

ADMINISTRATOR: Final = "administrator"
MONITORING: Final = "monitoring"
POLICYMAKER: Final = "policymaker"
MANAGEMENT: Final = "management"
TAGS: Final = frozenset({ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT})
EVERYTHING: Final = ".*"


class Principal:
    """A user who asks."""

    def __init__(self, user: User, *, reads_messages: bool = True) -> None:
        """`user` is one of the broker's. One who `reads_messages` may do so where their permissions allow it."""
        self.user = user
        self._reads_messages = reads_messages
        self.name = user.name

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the user."""
        return self.user.tags

    def has(self, *tags: str) -> bool:
        """Say whether the user has one of these tags."""
        return any(tag in self.user.tags for tag in tags)

    @property
    def is_administrator(self) -> bool:
        """Whether it may do everything."""
        return ADMINISTRATOR in self.user.tags

    @property
    def is_monitor(self) -> bool:
        """Whether it sees everything."""
        return self.has(ADMINISTRATOR, MONITORING)

    def sees(self, virtual_host: str) -> bool:
        """Say whether what lies in a virtual host may be shown."""
        return self.is_monitor or virtual_host in self.user.permissions

    def seen(self, virtual_hosts: Iterable[str]) -> list[str]:
        """Return those of the virtual hosts that may be shown."""
        return [name for name in virtual_hosts if self.sees(name)]

    # What follows raises Refused. ---------------------------------------------------------------------------------

    def require_management(self) -> None:
        """Refuse who has none of the tags."""
        if not TAGS.intersection(self.user.tags):
            raise not_authorised("Not management user")

    def require_administrator(self) -> None:
        """Refuse all but administrators."""
        if not self.is_administrator:
            raise not_authorised("Not administrator user")

    def require_monitor(self) -> None:
        """Refuse who does not see everything."""
        if not self.is_monitor:
            raise not_authorised("Not monitor user")

    def require_policymaker(self) -> None:
        """Refuse who has nothing to say about policies."""
        if not self.has(ADMINISTRATOR, POLICYMAKER):
            raise not_authorised("Not policymaker user")

    def require_messages(self) -> None:
        """Refuse who may not see messages themselves."""
        if not self._reads_messages:
            raise not_authorised("only keys with the role admin may see messages")

    def require_sight(self, virtual_host: str) -> None:
        """Refuse who may not see what lies in a virtual host."""
        if not self.sees(virtual_host):
            raise not_authorised("User not authorised to access virtual host")

    def require_entry(self, virtual_host: str) -> None:
        """Refuse who may not connect to a virtual host."""
        if virtual_host not in self.user.permissions:
            raise not_authorised("User not authorised to access virtual host")

    def check(self, host: VirtualHost, action: str, kind: str, name: str) -> None:
        """Raise `AccessRefused` unless the permissions of the user allow this."""
        check_permission(self.user, host, action, kind, name)


def holder_of_key(name: str, tags: tuple[str, ...], virtual_hosts: Iterable[str]) -> Principal:
    """Return somebody who was let in by other means than a password of the broker, with all permissions.

    These are permissions for everything that lies in the broker, records of a server and jobs of all tenants too, so
    only administrators see what is in messages.
    """
    everything = Permission(EVERYTHING, EVERYTHING, EVERYTHING)
    user = User(name, dict.fromkeys(virtual_hosts, everything))
    user.tags = tags
    return Principal(user, reads_messages=ADMINISTRATOR in tags)
