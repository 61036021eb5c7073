"""Administration of a running node. The command line and definition files use it.

Every change is stored, and applies to open connections too. Errors are the model's: `NotFound`,
`InvalidArgument`, `NotAllowed`.
"""

from typing import Final

from waybill.engine.amqp10.termini import Terminus
from waybill.engine.host import Host, User
from waybill.engine.server_engine import ServerEngine
from waybill.model.declaration_limits import check_arguments, check_growth
from waybill.model.errors import InvalidArgument, NotAllowed, NotFound
from waybill.model.policy import ALL, Policy
from waybill.model.queue_arguments import CLASSIC, QUORUM, STREAM
from waybill.model.virtual_host import VirtualHost
from waybill.node.accounts import Accounts
from waybill.node.parameters import Description, Parameters
from waybill.node.passwords import Credential
from waybill.node.virtual_host_deletion import VirtualHostDeletion

VIRTUAL_HOST: Final = "virtual_host"
IS_ENDING: Final = "is_ending"
POLICY: Final = "policy"
OPERATOR_POLICY: Final = "operator_policy"
FRESHNESS: Final = "seeded"
DEFAULT_VIRTUAL_HOSTS: Final = ("/", "/ojs")
GUEST: Final = "guest"
EVERYTHING: Final = ".*"
NAME_LIMIT: Final = 255
UNLIMITED: Final = -1


class VirtualHostLimits:
    """The limits of a virtual host. Negative: no limit."""

    def __init__(self, max_connections: int = UNLIMITED, max_queues: int = UNLIMITED) -> None:
        self.max_connections = max_connections
        self.max_queues = max_queues


class FirstUser:
    """A user of a new store. `permissions` by virtual host: the patterns for configure, write and read."""

    def __init__(
        self, name: str, password: str, tags: tuple[str, ...], permissions: dict[str, tuple[str, str, str]]
    ) -> None:
        self.name = name
        self.password = password
        self.tags = tags
        self.permissions = permissions


class AdministeredNode(Host):
    """What the administration needs of its node."""

    virtual_hosts: dict[str, VirtualHost]
    connections: dict[ServerEngine, None]


class Administration:
    """Users, permissions, virtual hosts, policies and limits of one node."""

    def __init__(
        self, node: AdministeredNode, accounts: Accounts, *, makes_guest: bool, first_users: list[FirstUser]
    ) -> None:
        self.accounts = accounts
        self.limits: dict[str, VirtualHostLimits] = {}
        self._node = node
        self._makes_guest = makes_guest and not first_users
        self._first_users = first_users
        self._store = node.runtime.store
        self.parameters = Parameters(self._store)

    def recover(self) -> None:
        """Load the stored state. Call this before exchanges and queues are restored.

        A new store gets the default virtual hosts and the first users. Without them, and with `makes_guest`, it gets
        the user guest, who may do everything from this machine.
        """
        for name, value in self._store.definitions(VIRTUAL_HOST):
            self._make_virtual_host(name, _limits_of(value))
            self._node.virtual_hosts[name].is_ending = bool(value.get(IS_ENDING))
        self.accounts.recover()
        self.parameters.recover()
        for name, description in self.parameters.descriptions.items():
            if name in self._node.virtual_hosts:
                self._node.virtual_hosts[name].default_queue_type = description.default_queue_type
        for kind in (POLICY, OPERATOR_POLICY):
            for _, value in self._store.definitions(kind):
                policy = _policy_of(value, is_operator=kind == OPERATOR_POLICY)
                self._node.virtual_hosts[str(value["virtual_host"])].policies.put(policy)
        if not list(self._store.definitions(FRESHNESS)):
            self._seed()

    def _seed(self) -> None:
        self._store.define(FRESHNESS, FRESHNESS, {})
        for name in DEFAULT_VIRTUAL_HOSTS:
            self.add_virtual_host(name)
        for user in self._first_users:
            self.put_user(user.name, user.password, user.tags)
            for name, (configure, write, read) in user.permissions.items():
                self.add_virtual_host(name)
                self.set_permission(user.name, name, configure, write, read)
        if self._makes_guest:
            self.put_user(GUEST, GUEST, ("administrator",))
            self.accounts.set_restrictions(GUEST, loopback_only=True, connection_max=UNLIMITED, channel_max=UNLIMITED)
            for name in self._node.virtual_hosts:
                self.set_permission(GUEST, name, EVERYTHING, EVERYTHING, EVERYTHING)

    # --- users ---

    def put_user(self, name: str, password: str, tags: tuple[str, ...] = ()) -> None:
        """Make a user, or change one. With an empty password they can log in by certificate only."""
        self.put_user_with_credential(name, self.accounts.credential(password), tags)

    def put_user_with_credential(self, name: str, credential: Credential, tags: tuple[str, ...]) -> None:
        """Like `put_user`, with the hash of a password instead of the password."""
        self._check_growth(f"user '{name}'")
        event = "user changed" if name in self.accounts.by_name else "user added"
        self.accounts.put(name, credential, tags)
        self._report(event, f"{name!r}, tags {', '.join(tags) or 'none'}")

    def delete_user(self, name: str) -> None:
        """Remove a user, with their links; close their connections."""
        self.accounts.remove(name)
        self._report("user deleted", repr(name))
        for connection in self._connections():
            if connection.user_name == name:
                connection.shut_down(f"user '{name}' is deleted")
        for link in self.links(user=name):
            self.remove_link(link)

    def set_user_limits(self, name: str, *, max_connections: int, max_channels: int) -> None:
        """Negative: no limit. `max_channels` counts those of one connection."""
        self._check_growth(f"limits of user '{name}'")
        self.accounts.set_restrictions(
            name,
            loopback_only=self.accounts.account(name).loopback_only,
            connection_max=max_connections,
            channel_max=max_channels,
        )

    def set_permission(self, user: str, virtual_host: str, configure: str, write: str, read: str) -> None:
        """Three patterns over names of exchanges and queues."""
        self._check_growth(f"a permission of user '{user}'")
        host = self._virtual_host(virtual_host)
        self.accounts.set_permission(user, virtual_host, configure, write, read)
        self._report(
            "permission set",
            f"user {user!r}, vhost {virtual_host!r}: configure {configure!r}, write {write!r}, read {read!r}",
        )
        host.rights_changed()

    def clear_permission(self, user: str, virtual_host: str) -> None:
        host = self._virtual_host(virtual_host)
        self.accounts.clear_permission(user, virtual_host)
        self._report("permission cleared", f"user {user!r}, vhost {virtual_host!r}")
        host.rights_changed()

    def set_topic_permission(self, user: str, virtual_host: str, exchange: str, write: str, read: str) -> None:
        """Two patterns over routing keys, for one topic exchange. Without them all keys are allowed there."""
        self._check_growth(f"a permission of user '{user}'")
        host = self._virtual_host(virtual_host)
        self.accounts.set_topic_permission(user, virtual_host, exchange, write, read)
        self._report(
            "topic permission set",
            f"user {user!r}, vhost {virtual_host!r}, exchange {exchange!r}: write {write!r}, read {read!r}",
        )
        host.rights_changed()

    def clear_topic_permission(self, user: str, virtual_host: str, exchange: str) -> None:
        host = self._virtual_host(virtual_host)
        self.accounts.clear_topic_permission(user, virtual_host, exchange)
        self._report("topic permission cleared", f"user {user!r}, vhost {virtual_host!r}, exchange {exchange!r}")
        host.rights_changed()

    # --- virtual hosts ---

    def add_virtual_host(self, name: str) -> None:
        """Make a virtual host, unless it exists."""
        if not name or len(name.encode("utf-8", "surrogateescape")) > NAME_LIMIT or "\0" in name:
            raise InvalidArgument(f"a virtual host's name has 1 to {NAME_LIMIT} bytes")
        there = self._node.virtual_hosts.get(name)
        if there is not None and there.is_ending:
            raise NotAllowed(f"vhost '{name}' is being deleted: create it again afterwards")
        if there is None:
            self._check_growth(f"vhost '{name}'")
            self._make_virtual_host(name, VirtualHostLimits())
            self._save_virtual_host(name)
            self._report("vhost added", repr(name))

    def describe_virtual_host(self, name: str, description: Description) -> None:
        """Set the description of a virtual host, and the type of new queues that are declared without one."""
        host = self._virtual_host(name)
        kind = description.default_queue_type
        if kind not in {"", CLASSIC, QUORUM, STREAM}:
            raise InvalidArgument(f"'{kind}' is not a queue type")
        host.default_queue_type = kind
        self.parameters.describe(name, description)

    def delete_virtual_host(self, name: str) -> None:
        """Remove a virtual host with everything in it, over several turns if it is large; close its connections."""
        host = self._virtual_host(name)
        host.is_ending = True
        self._save_virtual_host(name)
        self._report("vhost deleted", repr(name))
        self._go_on_deleting(host)

    def go_on_deleting(self) -> None:
        """After recovery: finish the deletions that were in progress when the node stopped."""
        for host in list(self._node.virtual_hosts.values()):
            if host.is_ending:
                self._go_on_deleting(host)

    def _go_on_deleting(self, host: VirtualHost) -> None:
        connections = [connection for connection in self._connections() if connection.virtual_host is host]
        runtime = self._node.runtime
        runtime.begin_read()
        links = self.links(virtual_host=host.name)
        runtime.begin(VirtualHostDeletion(host, connections, links, self._forget_virtual_host))

    def _forget_virtual_host(self, host: VirtualHost) -> None:
        """Forget a virtual host that is empty now."""
        name = host.name
        for policy in list(host.policies.policies):
            self._store.undefine(POLICY, f"{name}\0{policy}")
        for policy in list(host.policies.operator_policies):
            self._store.undefine(OPERATOR_POLICY, f"{name}\0{policy}")
        for user, account in self.accounts.by_name.items():
            self.accounts.clear_permission(user, name)
            for virtual_host, exchange in list(account.user.topic_permissions):
                if virtual_host == name:
                    self.accounts.clear_topic_permission(user, name, exchange)
        self.parameters.forget_virtual_host(name)
        del self._node.virtual_hosts[name]
        del self.limits[name]
        self._store.undefine(VIRTUAL_HOST, name)

    def set_virtual_host_limits(self, name: str, *, max_connections: int, max_queues: int) -> None:
        """Set limits; a negative one means no limit. Existing connections and queues beyond a limit are kept."""
        self._check_growth(f"limits of vhost '{name}'")
        self._virtual_host(name).max_queues = max(max_queues, UNLIMITED)
        self.limits[name] = VirtualHostLimits(max_connections, max_queues)
        self._save_virtual_host(name)
        self._report("vhost limits set", f"{name!r}: connections {max_connections}, queues {max_queues}")

    def check_connection_limits(self, user: User, virtual_host: str) -> None:
        """Raises `NotAllowed` if `user` may not open one more connection to `virtual_host`."""
        node_limit = self._node.limits.connections_max
        if len(self._node.connections) >= node_limit:
            raise NotAllowed(f"node connection limit ({node_limit}) is reached")
        account = self.accounts.by_name.get(user.name)
        user_limit = UNLIMITED if account is None else account.connection_max
        host_limit = self.limits[virtual_host].max_connections
        if user_limit < 0 and host_limit < 0:
            return
        connections = self._connections()
        access = f"access to vhost '{virtual_host}' refused for user '{user.name}': "
        if 0 <= host_limit <= sum(1 for other in connections if other.virtual_host.name == virtual_host):
            raise NotAllowed(f"{access}connection limit ({host_limit}) is reached")
        if 0 <= user_limit <= sum(1 for other in connections if other.user_name == user.name):
            raise NotAllowed(f"{access}user connection limit ({user_limit}) is reached")

    # --- links of AMQP 1.0 ---

    def links(self, *, virtual_host: str | None = None, user: str | None = None) -> list[Terminus]:
        """The links of AMQP 1.0 that are attached or can be resumed; of a virtual host, of a user.

        Links stored by older versions belong to the user "" until they are attached again.
        """
        return [
            terminus
            for terminus in self._node.termini.all()
            if (virtual_host is None or terminus.virtual_host.name == virtual_host)
            and (user is None or terminus.user == user)
        ]

    def remove_link(self, link: Terminus) -> None:
        """Forget a link, with its subscription and unsettled deliveries; detach it if it is attached.

        A link that no longer exists is no error.
        """
        link.remove()

    # --- policies ---

    def set_policy(
        self,
        virtual_host: str,
        name: str,
        pattern: str,
        definition: dict[str, object],
        *,
        priority: int = 0,
        apply_to: str = ALL,
        is_operator: bool = False,
    ) -> None:
        """Make or replace a policy. It applies to new entities at once, and to existing ones within a few turns."""
        host = self._virtual_host(virtual_host)
        check_arguments(f"policy '{name}'", definition)
        self._check_growth(f"policy '{name}'")
        host.policies.put(Policy(name, pattern, definition, priority, apply_to, is_operator=is_operator))
        self._store.define(
            OPERATOR_POLICY if is_operator else POLICY,
            f"{virtual_host}\0{name}",
            {
                "virtual_host": virtual_host,
                "name": name,
                "pattern": pattern,
                "definition": definition,
                "priority": priority,
                "apply_to": apply_to,
            },
        )
        kind = "operator policy" if is_operator else "policy"
        self._report(f"{kind} set", f"{name!r} in vhost {virtual_host!r}: {pattern!r}, {definition!r}")
        host.apply_policies()

    def clear_policy(self, virtual_host: str, name: str, *, is_operator: bool = False) -> None:
        host = self._virtual_host(virtual_host)
        policies = host.policies.operator_policies if is_operator else host.policies.policies
        if policies.pop(name, None) is None:
            raise NotFound(f"no policy '{name}' in vhost '{virtual_host}'")
        self._store.undefine(OPERATOR_POLICY if is_operator else POLICY, f"{virtual_host}\0{name}")
        self._report(f"{'operator policy' if is_operator else 'policy'} cleared", f"{name!r} in vhost {virtual_host!r}")
        host.apply_policies()

    # --- internals ---

    def _report(self, event: str, detail: str) -> None:
        self._node.runtime.operator_log.info(event, detail)

    def _check_growth(self, what: str) -> None:
        check_growth(self._node.runtime, what)

    def _virtual_host(self, name: str) -> VirtualHost:
        host = self._node.virtual_hosts.get(name)
        if host is None or host.is_ending:
            raise NotFound(f"no vhost '{name}'")
        return host

    def _make_virtual_host(self, name: str, limits: VirtualHostLimits) -> None:
        host = VirtualHost(name, self._node.runtime)
        host.max_queues = max(limits.max_queues, UNLIMITED)
        self._node.virtual_hosts[name] = host
        self.limits[name] = limits

    def _save_virtual_host(self, name: str) -> None:
        limits = self.limits[name]
        definition: dict[str, object] = {"max_connections": limits.max_connections, "max_queues": limits.max_queues}
        if self._node.virtual_hosts[name].is_ending:
            definition[IS_ENDING] = 1
        self._store.define(VIRTUAL_HOST, name, definition)

    def _connections(self) -> list[ServerEngine]:
        """The open connections."""
        return list(self._node.connections)


def _limits_of(value: dict[str, object]) -> VirtualHostLimits:
    connections = value.get("max_connections", UNLIMITED)
    queues = value.get("max_queues", UNLIMITED)
    return VirtualHostLimits(
        connections if isinstance(connections, int) else UNLIMITED, queues if isinstance(queues, int) else UNLIMITED
    )


def _policy_of(value: dict[str, object], *, is_operator: bool) -> Policy:
    definition = value["definition"]
    priority = value["priority"]
    return Policy(
        str(value["name"]),
        str(value["pattern"]),
        definition if isinstance(definition, dict) else {},
        priority if isinstance(priority, int) else 0,
        str(value["apply_to"]),
        is_operator=is_operator,
    )
