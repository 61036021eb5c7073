"""Other routes: those of RabbitMQ's own web interface, feature flags, login attempts."""

from __future__ import annotations

import base64
import os
from typing import Final

from waybill.management.api_context import ApiContext
from waybill.management.call import NO_CONTENT, Answer, Call
from waybill.management.errors import not_found
from waybill.management.listing import Item
from waybill.management.router import Route
from waybill.node.passwords import SALT_SIZE, make_credential

FEATURE_FLAGS: Final = (
    ("classic_mirrored_queue_version", "Support setting version for classic mirrored queues"),
    ("drop_unroutable_metric", "Count unroutable publishes to be dropped in stats"),
    ("empty_basic_get_metric", "Count AMQP `basic.get` on empty queues in stats"),
    ("implicit_default_bindings", "Default bindings are now implicit, instead of being stored in the database"),
    ("maintenance_mode_status", "Maintenance mode status"),
    ("quorum_queue", "Support queues of type `quorum`"),
    ("stream_queue", "Support queues of type `stream`"),
    ("user_limits", "Configure connection and channel limits for a user"),
    ("virtual_host_metadata", "Virtual host metadata (description, tags, etc)"),
)
TRANSIENT_QUEUES: Final = "transient_nonexcl_queues"
DEPRECATED: Final = (
    ("amqp_address_v1", "Addresses of RabbitMQ 3 in AMQP 1.0. RabbitMQ has deprecated them; Waybill keeps them"),
    ("global_qos", "A prefetch count for all consumers of a channel. RabbitMQ has deprecated it; Waybill keeps it"),
    (TRANSIENT_QUEUES, "Transient queues that are not exclusive. RabbitMQ has deprecated them; Waybill keeps them"),
)
"""Features that RabbitMQ has deprecated; management clients list them."""


class InterfaceRoutes:
    """The routes of this module."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "", self._index, is_open=True),
            Route("GET", "/auth", self._auth, is_open=True),
            Route("GET", "/auth/attempts/{node}", self._attempts),
            Route("GET", "/auth/attempts/{node}/source", self._attempts),
            Route("DELETE", "/auth/attempts/{node}", self._forget_attempts),
            Route("DELETE", "/auth/attempts/{node}/source", self._done),
            Route("GET", "/auth/hash_password/{password}", self._hash),
            Route("GET", "/extensions", self._extensions),
            Route("GET", "/feature-flags", self._flags),
            Route("PUT", "/feature-flags/{flag}/enable", self._enable),
            Route("GET", "/deprecated-features", self._deprecated),
            Route("GET", "/deprecated-features/used", self._deprecated_and_used),
            Route("DELETE", "/reset", self._done),
            Route("DELETE", "/reset/{node}", self._done),
        ]

    async def _index(self, _call: Call) -> Item:
        return {"product_name": "Waybill", "documentation": "how-to/manage.md"}

    async def _auth(self, _call: Call) -> Item:
        """Return the login method: a name and a password, not OAuth."""
        return {
            "enable_uaa": False,
            "oauth_client_id": "",
            "oauth_enabled": False,
            "oauth_provider_url": "",
            "uaa_client_id": "",
            "uaa_location": "",
        }

    async def _attempts(self, call: Call) -> list[Item]:
        call.principal.require_monitor()
        if call["node"] != self._context.node_name:
            raise not_found()
        if call.request.path.endswith("/source"):
            # Login attempts are limited by address, but not counted by address, as in RabbitMQ by default.
            return []
        return [
            {
                "protocol": protocol,
                "auth_attempts": let_in + refused,
                "auth_attempts_failed": refused,
                "auth_attempts_succeeded": let_in,
            }
            for protocol, (let_in, refused) in sorted(self._context.node.runtime.counters.logins.items())
        ]

    async def _forget_attempts(self, call: Call) -> Answer:
        """Reset the counts of login attempts."""
        call.principal.require_administrator()
        self._context.node.runtime.counters.logins.clear()
        return Answer(NO_CONTENT)

    async def _done(self, call: Call) -> Answer:
        """Accept a request to reset statistics that are not kept."""
        call.principal.require_administrator()
        return Answer(NO_CONTENT)

    async def _hash(self, call: Call) -> Item:
        call.principal.require_administrator()
        return {"ok": base64.b64encode(make_credential(call["password"], os.urandom(SALT_SIZE)).hash).decode()}

    async def _extensions(self, _call: Call) -> list[Item]:
        return [{"javascript": "dispatcher.js"}]

    async def _flags(self, call: Call) -> list[Item]:
        call.principal.require_monitor()
        return [
            {
                "desc": text,
                "doc_url": "",
                "name": name,
                "provided_by": "waybill",
                "stability": "stable",
                "state": "enabled",
            }
            for name, text in FEATURE_FLAGS
        ]

    async def _enable(self, call: Call) -> Answer:
        call.principal.require_administrator()
        if call["flag"] not in dict(FEATURE_FLAGS):
            raise not_found()
        return Answer(NO_CONTENT)

    async def _deprecated(self, call: Call) -> list[Item]:
        call.principal.require_monitor()
        return [_deprecated_item(name, text) for name, text in DEPRECATED]

    async def _deprecated_and_used(self, call: Call) -> list[Item]:
        call.principal.require_monitor()
        queues = (queue for host in self._context.virtual_hosts(call) for queue in host.queues.values())
        # Finding uses of the others would be too expensive for a request.
        if not any(not queue.durable and queue.owner is None for queue in queues):
            return []
        return [_deprecated_item(name, text) for name, text in DEPRECATED if name == TRANSIENT_QUEUES]


def _deprecated_item(name: str, text: str) -> Item:
    return {
        "deprecation_phase": "permitted_by_default",
        "desc": text,
        "doc_url": "",
        "name": name,
        "provided_by": "waybill",
        "state": "permitted",
    }
