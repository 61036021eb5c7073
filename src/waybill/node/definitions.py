"""Export and import of a node's definitions, as one document in the form of RabbitMQ's definition files.

The document has only JSON's types: mappings, lists, text, numbers, booleans and None. It contains no messages.
Importing adds and replaces definitions, and removes none. A user imported with RabbitMQ's SHA-256 hash can log in; the
first login replaces the hash by ours. Our hashes are exported under a name that RabbitMQ does not know.
"""

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from waybill.engine.scram import ScramKeys
from waybill.model.binding import EXCHANGE, QUEUE
from waybill.model.declaration_limits import is_text
from waybill.model.errors import InvalidArgument, ModelError, NotFound
from waybill.model.policy import ALL, Policy
from waybill.model.runtime import Chore
from waybill.model.virtual_host import VirtualHost
from waybill.node.accounts import Account
from waybill.node.administration import UNLIMITED
from waybill.node.node import Node
from waybill.node.parameters import Description
from waybill.node.passwords import RABBITMQ_SHA256, SCRYPT, Credential

Document = dict[str, object]
DEPTH_LIMIT: Final = 32
UNDEFINED: Final = "undefined"
"""How RabbitMQ writes that a virtual host has no default type of queues."""
ITEM_UNITS: Final = 32
"""The cost of importing one, in units of a turn."""

LISTS: Final = (
    "vhosts",
    "users",
    "permissions",
    "topic_permissions",
    "parameters",
    "policies",
    "exchanges",
    "queues",
    "bindings",
)
# Other keys that RabbitMQ writes: about itself, or for plugins.
DESCRIPTIONS: Final = frozenset(
    {
        "rabbit_version",
        "rabbitmq_version",
        "rabbitmq_definition_format",
        "product_name",
        "product_version",
        "original_cluster_name",
        "explanation",
        "metadata",
    }
)


@dataclass
class ImportReport:
    """`counts`: how many of each list were imported. `notes`: what was skipped on purpose. `errors`: refusals."""

    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


# --- export ---


def export_definitions(node: Node) -> Document:
    """The document of everything durable in `node`. Raises `InvalidArgument` for values that JSON cannot express."""
    export = Export(node)
    return {**export.head, **{section: list(items) for section, items in export.sections()}}


class Export:
    """Everything durable in a node at one moment. The items are made while they are read: there may be 200,000."""

    def __init__(self, node: Node) -> None:
        self.head: Document = {"product_name": "Waybill", "product_version": node.product_version}
        self._node = node
        self._accounts = list(node.administration.accounts.by_name.items())
        self._limits = list(node.administration.limits.items())
        self._hosts = list(node.virtual_hosts.values())
        self._exchanges = [(host.name, exchange) for host in self._hosts for exchange in host.exchanges.values()]
        self._bindings = [
            (host, binding)
            for host, exchange in self._exchanges
            for binding in exchange.bindings.values()
            if binding.is_persistent
        ]
        self._queues = [
            (host.name, queue) for host in self._hosts for queue in host.queues.values() if queue.is_persistent
        ]

    def sections(self) -> Iterator[tuple[str, Iterator[Document]]]:
        """The names of `LISTS` and their items. Reading raises `InvalidArgument` for what JSON cannot express."""
        yield "vhosts", (_virtual_host(self._node, host.name) for host in self._hosts if not host.is_ending)
        yield "users", (_user(account) for _, account in self._accounts)
        yield "permissions", self._permissions()
        yield "topic_permissions", self._topic_permissions()
        yield "parameters", self._parameters()
        yield "policies", self._policies()
        yield "exchanges", map(_checked, self._declared_exchanges())
        yield "queues", map(_checked, self._declared_queues())
        yield "bindings", map(_checked, self._bound())

    def _permissions(self) -> Iterator[Document]:
        for name, account in self._accounts:
            for virtual_host, permission in account.user.permissions.items():
                yield {"user": name, "vhost": virtual_host, **permission.patterns}

    def _topic_permissions(self) -> Iterator[Document]:
        for name, account in self._accounts:
            for (virtual_host, exchange), topic in account.user.topic_permissions.items():
                yield {"user": name, "vhost": virtual_host, "exchange": exchange, **topic.patterns}

    def _parameters(self) -> Iterator[Document]:
        for name, limits in self._limits:
            value = {"max-connections": limits.max_connections, "max-queues": limits.max_queues}
            set_limits = {key: limit for key, limit in value.items() if limit >= 0}
            if set_limits:
                yield {"vhost": name, "component": "vhost-limits", "name": "limits", "value": set_limits}
        for host in self._hosts:
            for policy in list(host.policies.operator_policies.values()):
                yield {
                    "vhost": host.name,
                    "component": "operator_policy",
                    "name": policy.name,
                    "value": _policy(policy),
                }

    def _policies(self) -> Iterator[Document]:
        for host in self._hosts:
            for policy in list(host.policies.policies.values()):
                yield {"vhost": host.name, "name": policy.name, **_policy(policy)}

    def _declared_exchanges(self) -> Iterator[Document]:
        for host, exchange in self._exchanges:
            if exchange.name and not exchange.name.startswith("amq.") and exchange.durable:
                yield {
                    "name": exchange.name,
                    "vhost": host,
                    "type": exchange.type,
                    "durable": True,
                    "auto_delete": exchange.auto_delete,
                    "internal": exchange.internal,
                    "arguments": exchange.arguments,
                }

    def _declared_queues(self) -> Iterator[Document]:
        for host, queue in self._queues:
            yield {
                "name": queue.name,
                "vhost": host,
                "durable": True,
                "auto_delete": queue.auto_delete,
                "arguments": queue.arguments,
            }

    def _bound(self) -> Iterator[Document]:
        for host, binding in self._bindings:
            yield {
                "source": binding.source,
                "vhost": host,
                "destination": binding.destination,
                "destination_type": binding.destination_kind,
                "routing_key": binding.routing_key,
                "arguments": binding.arguments,
            }


def _checked(item: Document) -> Document:
    """Return an item. Raises `InvalidArgument` if JSON cannot express it exactly."""
    if not _is_json(item):
        raise InvalidArgument(
            f"the definition of {item.get('name', item.get('destination'))!r} cannot be written as JSON"
        )
    return item


def _is_json(value: object) -> bool:
    if isinstance(value, str):
        return is_text(value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(key) and _is_json(item) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_json(item) for item in value)
    return value is None or isinstance(value, (bool, int, float))


def _virtual_host(node: Node, name: str) -> Document:
    described = node.administration.parameters.descriptions.get(name)
    if described is None:
        return {"name": name}
    return {
        "name": name,
        "description": described.text,
        "tags": list(described.tags),
        "default_queue_type": described.default_queue_type or UNDEFINED,
    }


def _user(account: Account) -> Document:
    credential = account.credential
    limits = {"max-connections": account.connection_max, "max-channels": account.user.channel_max}
    user: Document = {
        "name": account.user.name,
        "password_hash": base64.b64encode(credential.hash).decode(),
        "hashing_algorithm": credential.algorithm,
        "tags": list(account.user.tags),
        "limits": {name: limit for name, limit in limits.items() if limit >= 0},
    }
    if account.loopback_only:
        user["loopback_only"] = True
    keys = credential.scram
    if keys is not None:
        user["scram_sha_256"] = {
            "salt": base64.b64encode(keys.salt).decode(),
            "iterations": keys.iterations,
            "stored_key": base64.b64encode(keys.stored_key).decode(),
            "server_key": base64.b64encode(keys.server_key).decode(),
        }
    return user


def _policy(policy: Policy) -> Document:
    return {
        "pattern": policy.pattern.text,
        "apply-to": policy.apply_to,
        "definition": policy.definition,
        "priority": policy.priority,
    }


# --- import ---


def import_definitions(node: Node, document: Document) -> ImportReport:
    """Import a document in one go: see `DefinitionImport`."""
    importing = DefinitionImport(node, document)
    while not importing.work():
        node.runtime.begin_turn()
    return importing.report


class DefinitionImport(Chore):
    """Imports a document, in as many turns as it takes: others are served in between.

    An item that is refused does not stop the others: see `report.errors`. The items of a document for one virtual host,
    which RabbitMQ exports without its name, are refused: they have no `vhost`.
    """

    def __init__(self, node: Node, document: Document) -> None:
        self._runtime = node.runtime
        self._importer = _Importer(node)
        self.report = self._importer.report
        self._items: list[tuple[str, int, object]] = []
        self._done = 0
        for section in LISTS:
            items = document.get(section)
            if isinstance(items, list):
                self._items += [(section, index, item) for index, item in enumerate(items)]
            elif items is not None:
                self.report.errors.append(f"{section}: must be a list")
        for section in document.keys() - DESCRIPTIONS - set(LISTS):
            if document[section]:
                self.report.notes.append(f"{section}: unknown, skipped")

    def work(self) -> bool:
        runtime = self._runtime
        while self._done < len(self._items):
            if runtime.work_left <= 0:
                return False
            section, index, item = self._items[self._done]
            self._done += 1
            # A password in plain text takes a slow hash.
            is_slow = section == "users" and isinstance(item, dict) and "password" in item
            runtime.work_left -= runtime.turn_units if is_slow else ITEM_UNITS
            self._take(section, index, item)
        self.report.notes.sort()
        return True

    def _take(self, section: str, index: int, item: object) -> None:
        report = self.report
        try:
            if not isinstance(item, dict):
                raise InvalidArgument("must be an object")
            self._importer.take(section, _Item(item))
        except ModelError as error:
            report.errors.append(f"{section}[{index}]: {error}")
        else:
            report.counts[section] = report.counts.get(section, 0) + 1


class _Item:
    """One object of a document. Raises `InvalidArgument` for values that are missing or of another type."""

    def __init__(self, values: Document) -> None:
        self.values = values

    def text(self, name: str, default: str | None = None) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise InvalidArgument(f"'{name}' must be text")
        return value

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise InvalidArgument(f"'{name}' must be true or false")
        return value

    def number(self, name: str, default: int) -> int:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not _fits_table(value, 0):
            raise InvalidArgument(f"'{name}' must be an integer of 64 bits")
        return value

    def table(self, name: str) -> Document:
        # Some versions of RabbitMQ write an empty table as an empty list.
        value = self.values.get(name) or {}
        if not isinstance(value, dict):
            raise InvalidArgument(f"'{name}' must be an object")
        if not _fits_table(value, 0):
            raise InvalidArgument(f"'{name}' holds a number beyond 64 bits, or is nested too deeply")
        return value

    def octets(self, name: str) -> bytes:
        try:
            return base64.b64decode(self.text(name, ""), validate=True)
        except (binascii.Error, ValueError):
            raise InvalidArgument(f"'{name}' must be base64") from None

    def tags(self) -> tuple[str, ...]:
        value = self.values.get("tags", "")
        if isinstance(value, str):
            value = value.split(",")
        if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
            raise InvalidArgument("'tags' must be a list of text")
        return tuple(tag.strip() for tag in value if tag.strip())


def _fits_table(value: object, depth: int) -> bool:
    """Whether AMQP's tables, and so the store, can express a value of JSON."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if not isinstance(value, (dict, list)):
        return True
    if depth >= DEPTH_LIMIT:
        return False
    items = value.values() if isinstance(value, dict) else value
    return all(_fits_table(item, depth + 1) for item in items)


class _Importer:
    def __init__(self, node: Node) -> None:
        self.report = ImportReport()
        self._node = node
        self._administration = node.administration

    def take(self, section: str, item: _Item) -> None:
        if section == "vhosts":
            self._take_virtual_host(item)
        elif section == "users":
            self._take_user(item)
        elif section == "permissions":
            self._administration.set_permission(
                item.text("user"), item.text("vhost"), item.text("configure"), item.text("write"), item.text("read")
            )
        elif section == "topic_permissions":
            self._administration.set_topic_permission(
                item.text("user"), item.text("vhost"), item.text("exchange"), item.text("write"), item.text("read")
            )
        elif section == "parameters":
            self._take_parameter(item)
        elif section == "policies":
            self._take_policy(item.text("vhost"), item.text("name"), item, is_operator=False)
        elif section == "exchanges":
            self._host(item).declare_exchange(
                item.text("name"),
                item.text("type"),
                durable=item.flag("durable"),
                auto_delete=item.flag("auto_delete"),
                internal=item.flag("internal"),
                arguments=item.table("arguments"),
            )
        elif section == "queues":
            self._host(item).declare_queue(
                item.text("name"),
                durable=item.flag("durable"),
                auto_delete=item.flag("auto_delete"),
                exclusive_to=None,
                connection=None,
                arguments=item.table("arguments"),
            )
        else:
            self._take_binding(item)

    def _host(self, item: _Item) -> VirtualHost:
        name = item.text("vhost")
        host = self._node.virtual_host(name)
        if host is None:
            raise NotFound(f"no vhost '{name}'")
        return host

    def _take_virtual_host(self, item: _Item) -> None:
        name = item.text("name")
        self._administration.add_virtual_host(name)
        if item.values.keys() & {"description", "tags", "default_queue_type"}:
            kind = item.text("default_queue_type", UNDEFINED)
            described = Description(item.text("description", ""), item.tags(), "" if kind == UNDEFINED else kind)
            self._administration.describe_virtual_host(name, described)

    def _take_user(self, item: _Item) -> None:
        name = item.text("name")
        if "password" in item.values:
            self._administration.put_user(name, item.text("password"), item.tags())
        else:
            self._administration.put_user_with_credential(name, _credential(item), item.tags())
        limits = _Item(item.table("limits"))
        self._administration.accounts.set_restrictions(
            name,
            loopback_only=item.flag("loopback_only"),
            connection_max=limits.number("max-connections", UNLIMITED),
            channel_max=limits.number("max-channels", UNLIMITED),
        )

    def _take_parameter(self, item: _Item) -> None:
        component = item.text("component")
        value = _Item(item.table("value"))
        if component == "operator_policy":
            self._take_policy(item.text("vhost"), item.text("name"), value, is_operator=True)
        elif component == "vhost-limits":
            self._administration.set_virtual_host_limits(
                item.text("vhost"),
                max_connections=value.number("max-connections", UNLIMITED),
                max_queues=value.number("max-queues", UNLIMITED),
            )
        else:
            self.report.notes.append(f"parameters: component '{component}' is unknown, skipped")

    def _take_policy(self, virtual_host: str, name: str, item: _Item, *, is_operator: bool) -> None:
        self._administration.set_policy(
            virtual_host,
            name,
            item.text("pattern"),
            item.table("definition"),
            priority=item.number("priority", 0),
            apply_to=item.text("apply-to", ALL),
            is_operator=is_operator,
        )

    def _take_binding(self, item: _Item) -> None:
        host = self._host(item)
        destination = item.text("destination")
        kind = item.text("destination_type")
        source = item.text("source")
        routing_key = item.text("routing_key", "")
        arguments = item.table("arguments")
        if kind == QUEUE:
            queue = host.queues.get(destination)
            if queue is None:
                raise NotFound(f"no queue '{destination}' in vhost '{host.name}'")
            host.bind_queue(queue, source, routing_key, arguments)
        elif kind == EXCHANGE:
            host.bind_exchange(destination, source, routing_key, arguments)
        else:
            raise InvalidArgument("'destination_type' must be queue or exchange")


def _credential(item: _Item) -> Credential:
    algorithm = item.text("hashing_algorithm", RABBITMQ_SHA256)
    if algorithm not in {RABBITMQ_SHA256, SCRYPT}:
        raise InvalidArgument(f"the hashing algorithm '{algorithm}' is not supported")
    keys: ScramKeys | None = None
    if "scram_sha_256" in item.values:
        scram = _Item(item.table("scram_sha_256"))
        keys = ScramKeys(
            scram.octets("salt"), scram.number("iterations", 0), scram.octets("stored_key"), scram.octets("server_key")
        )
    return Credential(algorithm, item.octets("password_hash"), keys)
