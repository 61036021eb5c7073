"""The user of a request, and what the tags of a user allow.

- management: the user's own connections, and the contents of virtual hosts that the user may enter
- policymaker: the same, and policies and parameters of these virtual hosts
- monitoring: the same as management, and reading everything
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
    """The user of a request."""

    def __init__(self, user: User, *, reads_messages: bool = True) -> None:
        """`user` is a user of the broker. `reads_messages`: may read messages where their permissions allow it."""
        self.user = user
        self._reads_messages = reads_messages
        self.name = user.name

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the user."""
        return self.user.tags

    def has(self, *tags: str) -> bool:
        """Whether the user has one of these tags."""
        return any(tag in self.user.tags for tag in tags)

    @property
    def is_administrator(self) -> bool:
        """Whether the user may do everything."""
        return ADMINISTRATOR in self.user.tags

    @property
    def is_monitor(self) -> bool:
        """Whether the user may see everything."""
        return self.has(ADMINISTRATOR, MONITORING)

    def can_see(self, virtual_host: str) -> bool:
        """Whether the user may see the contents of a virtual host."""
        return self.is_monitor or virtual_host in self.user.permissions

    # --- checks, which raise Refused ---

    def require_management(self) -> None:
        """Refuse users without any of the tags."""
        if not TAGS.intersection(self.user.tags):
            raise not_authorised("Not management user")

    def require_administrator(self) -> None:
        """Refuse all but administrators."""
        if not self.is_administrator:
            raise not_authorised("Not administrator user")

    def require_monitor(self) -> None:
        """Refuse users who may not see everything."""
        if not self.is_monitor:
            raise not_authorised("Not monitor user")

    def require_policymaker(self) -> None:
        """Refuse users who may not change policies."""
        if not self.has(ADMINISTRATOR, POLICYMAKER):
            raise not_authorised("Not policymaker user")

    def require_messages(self) -> None:
        """Refuse users who may not read messages."""
        if not self._reads_messages:
            raise not_authorised("only keys with the role admin may see messages")

    def require_visible(self, virtual_host: str) -> None:
        """Refuse users who may not see a virtual host."""
        if not self.can_see(virtual_host):
            raise not_authorised("User not authorised to access virtual host")

    def require_access(self, virtual_host: str) -> None:
        """Refuse users who may not connect to a virtual host."""
        if virtual_host not in self.user.permissions:
            raise not_authorised("User not authorised to access virtual host")

    def check(self, host: VirtualHost, action: str, kind: str, name: str) -> None:
        """Raise `AccessRefused` unless the permissions of the user allow this."""
        check_permission(self.user, host, action, kind, name)


def principal_of_key(name: str, tags: tuple[str, ...], virtual_hosts: Iterable[str]) -> Principal:
    """Return a principal for the holder of an API key, with all permissions in all virtual hosts.

    The messages include the records of a server and the jobs of all tenants, so only administrators may read them.
    """
    everything = Permission(EVERYTHING, EVERYTHING, EVERYTHING)
    user = User(name, dict.fromkeys(virtual_hosts, everything))
    user.tags = tags
    return Principal(user, reads_messages=ADMINISTRATOR in tags)
