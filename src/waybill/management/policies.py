"""Policies and parameters: /api/policies, /api/operator-policies, /api/parameters, /api/global-parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from waybill.management.api_context import CLUSTER_NAME, ApiContext
from waybill.management.call import CREATED, NO_CONTENT, Answer, Call, integer_of, require, table_of, text_of
from waybill.management.errors import bad_request, not_found
from waybill.management.listing import Item, Listing, plain
from waybill.management.router import Route
from waybill.management.virtual_hosts import LIMITS, MAX_CONNECTIONS, MAX_QUEUES, limits_of
from waybill.model.errors import ModelError
from waybill.model.policy import ALL, Policy
from waybill.model.virtual_host import VirtualHost
from waybill.node.administration import UNLIMITED
from waybill.node.node import Node

VIRTUAL_HOST_LIMITS: Final = "vhost-limits"
OPERATOR_POLICY: Final = "operator_policy"


class PolicyRoutes:
    """The routes for policies, or for operator policies."""

    def __init__(self, context: ApiContext, *, is_operator: bool) -> None:
        self._context = context
        self._is_operator = is_operator

    def routes(self) -> list[Route]:
        """Return the routes."""
        root = "/operator-policies" if self._is_operator else "/policies"
        one = root + "/{vhost}/{policy}"
        return [
            Route("GET", root, self._list),
            Route("GET", root + "/{vhost}", self._list),
            Route("GET", one, self._show),
            Route("PUT", one, self._put),
            Route("DELETE", one, self._delete),
        ]

    def _of(self, host: VirtualHost) -> dict[str, Policy]:
        return host.policies.operator_policies if self._is_operator else host.policies.policies

    async def _list(self, call: Call) -> Answer:
        call.principal.require_policymaker()
        found = [(host, one) for host in self._hosts(call) for one in self._of(host).values()]
        listing = Listing[tuple[VirtualHost, Policy]](
            lambda place: policy_item(*place),
            {"name": lambda place: place[1].name, "vhost": lambda place: place[0].name},
            tie=lambda place: (place[0].name, place[1].name),
        )
        return await listing.answer(call, found)

    def _hosts(self, call: Call) -> list[VirtualHost]:
        return self._context.virtual_hosts(call)

    async def _show(self, call: Call) -> Item:
        call.principal.require_policymaker()
        host = self._context.virtual_host(call)
        policy = self._of(host).get(call["policy"])
        if policy is None:
            raise not_found()
        return policy_item(host, policy)

    def _changed(self, call: Call) -> VirtualHost:
        """Return a virtual host whose policies the user may change. Raises Refused."""
        if self._is_operator:
            call.principal.require_administrator()
        else:
            call.principal.require_policymaker()
        return self._context.virtual_host(call)

    async def _put(self, call: Call) -> Answer:
        host = self._changed(call)
        body = call.take_body()
        require(body, "pattern", "definition")
        name = call["policy"]
        is_new = name not in self._of(host)
        definition = table_of(body, "definition")
        priority = integer_of(body, "priority", 0) if body.get("priority") is not None else 0
        apply_to = text_of(body, "apply-to", ALL) or ALL

        def put(node: Node) -> None:
            node.administration.set_policy(
                host.name,
                name,
                text_of(body, "pattern"),
                definition,
                priority=priority,
                apply_to=apply_to,
                is_operator=self._is_operator,
            )

        await _validated(self._context, put)
        return Answer(CREATED if is_new else NO_CONTENT)

    async def _delete(self, call: Call) -> Answer:
        host = self._changed(call)
        if call["policy"] not in self._of(host):
            raise not_found()
        await self._context.perform(
            lambda node: node.administration.clear_policy(host.name, call["policy"], is_operator=self._is_operator)
        )
        return Answer(NO_CONTENT)


class ParameterRoutes:
    """The routes for parameters. Virtual hosts have no parameters but their limits."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        one = "/parameters/{component}/{vhost}/{parameter}"
        return [
            Route("GET", "/parameters", self._list),
            Route("GET", "/parameters/{component}", self._list),
            Route("GET", "/parameters/{component}/{vhost}", self._list),
            Route("GET", one, self._show),
            Route("PUT", one, self._put),
            Route("DELETE", one, self._delete),
            Route("GET", "/global-parameters", self._globals),
            Route("GET", "/global-parameters/{parameter}", self._global),
            Route("PUT", "/global-parameters/{parameter}", self._put_global),
            Route("DELETE", "/global-parameters/{parameter}", self._delete_global),
        ]

    def _found(self, call: Call) -> list[Item]:
        call.principal.require_policymaker()
        component = call.parameters.get("component")
        found: list[Item] = []
        for host in self._context.virtual_hosts(call):
            value = limits_of(self._context, host)
            if value and component in {None, VIRTUAL_HOST_LIMITS}:
                found.append({"component": VIRTUAL_HOST_LIMITS, "name": "limits", "value": value, "vhost": host.name})
            if component in {None, OPERATOR_POLICY}:
                found += [
                    {
                        "component": OPERATOR_POLICY,
                        "name": policy.name,
                        "value": _definition(policy),
                        "vhost": host.name,
                    }
                    for policy in host.policies.operator_policies.values()
                ]
        return found

    async def _list(self, call: Call) -> list[Item]:
        return self._found(call)

    async def _show(self, call: Call) -> Item:
        for item in self._found(call):
            if item["name"] == call["parameter"]:
                return item
        raise not_found()

    async def _put(self, call: Call) -> Answer:
        call.principal.require_policymaker()
        host = self._context.virtual_host(call)
        component, name = call["component"], call["parameter"]
        body = call.take_body()
        require(body, "value")
        if component != VIRTUAL_HOST_LIMITS:
            raise bad_request(f"Validation failed\n\ncomponent {component} not found\n")
        value = table_of(body, "value")
        unknown = value.keys() - set(LIMITS)
        if unknown or name != "limits":
            raise bad_request(f"Validation failed\n\nUnrecognised terms {sorted(unknown) or name} in limits\n")
        is_new = not limits_of(self._context, host)

        def put(node: Node) -> None:
            node.administration.set_virtual_host_limits(
                host.name,
                max_connections=integer_of(value, MAX_CONNECTIONS, UNLIMITED),
                max_queues=integer_of(value, MAX_QUEUES, UNLIMITED),
            )

        call.principal.require_administrator()
        await self._context.perform(put)
        return Answer(CREATED if is_new else NO_CONTENT)

    async def _delete(self, call: Call) -> Answer:
        call.principal.require_administrator()
        host = self._context.virtual_host(call)
        if not any(item["name"] == call["parameter"] for item in self._found(call)):
            raise not_found()
        if call["component"] == OPERATOR_POLICY:
            await self._context.perform(
                lambda node: node.administration.clear_policy(host.name, call["parameter"], is_operator=True)
            )
        else:
            await self._context.perform(
                lambda node: node.administration.set_virtual_host_limits(
                    host.name, max_connections=UNLIMITED, max_queues=UNLIMITED
                )
            )
        return Answer(NO_CONTENT)

    # --- global parameters ---

    async def _globals(self, call: Call) -> list[Item]:
        call.principal.require_administrator()
        return [{"name": name, "value": value} for name, value in sorted(self._values().items())]

    def _values(self) -> dict[str, object]:
        """Return all global parameters, including those of every cluster."""
        name = self._context.cluster_name
        ours: dict[str, object] = {CLUSTER_NAME: name, "internal_cluster_id": f"rabbitmq-cluster-id-{name}"}
        return ours | self._context.administration.parameters.values

    async def _global(self, call: Call) -> Item:
        call.principal.require_administrator()
        values = self._values()
        if call["parameter"] not in values:
            raise not_found()
        return {"name": call["parameter"], "value": values[call["parameter"]]}

    async def _put_global(self, call: Call) -> Answer:
        call.principal.require_administrator()
        body = call.take_body()
        require(body, "value")
        name = call["parameter"]
        is_new = name not in self._context.administration.parameters.values
        value: Any = body["value"]
        await self._context.perform(lambda node: node.administration.parameters.put(name, value))
        return Answer(CREATED if is_new else NO_CONTENT)

    async def _delete_global(self, call: Call) -> Answer:
        call.principal.require_administrator()
        if call["parameter"] not in self._context.administration.parameters.values:
            raise not_found()
        await self._context.perform(lambda node: node.administration.parameters.clear(call["parameter"]))
        return Answer(NO_CONTENT)


async def _validated(context: ApiContext, change: Callable[[Node], None]) -> None:
    """Change a policy. Raises Refused with RabbitMQ's messages."""
    try:
        await context.perform(change)
    except ModelError as error:
        raise bad_request(f"Validation failed\n\n{error}\n") from None


def policy_item(host: VirtualHost, policy: Policy) -> Item:
    """Return a policy as JSON."""
    return {"name": policy.name, "vhost": host.name, **_definition(policy)}


def _definition(policy: Policy) -> Item:
    return {
        "apply-to": policy.apply_to,
        "definition": plain(policy.definition),
        "pattern": policy.pattern.text,
        "priority": policy.priority,
    }
