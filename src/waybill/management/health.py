"""Health: /api/health/checks/*, /api/aliveness-test, /api/healthchecks, and readiness for orchestrators."""

from __future__ import annotations

import ssl
import time
from typing import Final

from waybill.management.api_context import ApiContext
from waybill.management.call import Answer, Call
from waybill.management.errors import bad_request, not_found
from waybill.management.listing import Item
from waybill.management.router import Route

OK: Final[Item] = {"status": "ok"}
UNITS: Final = {
    "days": 86_400,
    "weeks": 7 * 86_400,
    "months": 30 * 86_400,
    "years": 365 * 86_400,
    "hours": 3600,
    "minutes": 60,
    "seconds": 1,
}
PROTOCOLS: Final = {"amqp091": "amqp", "amqp10": "amqp", "amqps": "amqp/ssl", "https": "https", "http": "http"}


class HealthRoutes:
    """The routes for health checks."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        checks = "/health/checks"
        always = (
            "virtual-hosts",
            "ready-to-serve-clients",
            "is-in-service",
            "metadata-store/initialized",
            "metadata-store/initialized/with-data",
            "quorum-queues-without-elected-leaders/all-vhosts",
            "quorum-queues-without-elected-leaders/vhost/{vhost}",
        )
        return [
            Route("GET", f"{checks}/alarms", self._alarms),
            Route("GET", f"{checks}/local-alarms", self._alarms),
            Route("GET", f"{checks}/certificate-expiration/{{within}}/{{unit}}", self._certificates),
            Route("GET", f"{checks}/port-listener/{{port}}", self._port),
            Route("GET", f"{checks}/protocol-listener/{{protocol}}", self._protocol),
            Route("GET", f"{checks}/below-node-connection-limit", self._connections),
            *(Route("GET", f"{checks}/{name}", self._ok) for name in always),
            Route("GET", f"{checks}/node-is-mirror-sync-critical", self._single_node),
            Route("GET", f"{checks}/node-is-quorum-critical", self._single_node),
            Route("GET", "/aliveness-test/{vhost}", self._alive),
            Route("GET", "/healthchecks/node", self._node),
            Route("GET", "/healthchecks/node/{node}", self._node),
        ]

    async def _ok(self, _call: Call) -> Item:
        return OK

    async def _single_node(self, _call: Call) -> Item:
        return {"reason": "single node cluster", "status": "ok"}

    async def _alarms(self, _call: Call) -> object:
        alarm = self._context.node.alarm
        if not alarm:
            return OK
        resource = "disk" if self._context.node.runtime.disk_alarm else "memory"
        return _failed(
            f"Alarms are in effect: {alarm}",
            alarms=[{"node": self._context.node_name, "resource": resource}],
        )

    async def _connections(self, _call: Call) -> object:
        limit = int(self._context.node.limits.connections_max)
        count = len(self._context.node.connections)
        if count < limit:
            return {"status": "ok", "limit": limit, "connections": count}
        return _failed("node connection limit is reached", limit=limit, connections=count)

    async def _certificates(self, call: Call) -> object:
        unit = UNITS.get(call["unit"])
        within = call["within"]
        if unit is None:
            raise bad_request("Time unit not recognised. Supported units: days, weeks, months, years.")
        if not within.isdecimal() or len(within) > 9:
            raise bad_request("Invalid expiration value")
        certificate = self._context.broker.tls_certificate
        if certificate is None:
            return OK
        expires = _expiry(str(certificate))
        if expires is None or expires > time.time() + int(within) * unit:
            return OK
        return _failed("Certificates expiring", expired=[{"certificate": str(certificate), "expires_at": int(expires)}])

    def _listeners(self) -> list[dict[str, object]]:
        return self._context.listeners()

    async def _port(self, call: Call) -> object:
        text = call["port"]
        if not text.isdecimal() or not 0 < int(text[:9]) < 65_536:
            raise bad_request("Invalid port")
        port = int(text)
        ports = sorted(int(str(one["port"])) for one in self._listeners())
        if port in ports:
            return {"port": port, "status": "ok"}
        return _failed("No active listener", missing=port, ports=ports)

    async def _protocol(self, call: Call) -> object:
        wanted = call["protocol"].lower().replace("-", "").replace(".", "").replace("_", "")
        name = PROTOCOLS.get(wanted, call["protocol"].lower())
        protocols = sorted({str(one["protocol"]) for one in self._listeners()})
        if name in protocols:
            return {"protocol": call["protocol"], "status": "ok"}
        return _failed("No active listener", missing=call["protocol"], protocols=protocols)

    async def _alive(self, call: Call) -> Item:
        """Check that a virtual host works. RabbitMQ leaves a queue in it; this does not."""
        self._context.virtual_host(call)
        # A finished commit shows that the store works.
        await self._context.perform(lambda _node: None)
        return OK

    async def _node(self, call: Call) -> Item:
        call.principal.require_monitor()
        if call.parameters.get("node", self._context.node_name) != self._context.node_name:
            raise not_found()
        await self._context.perform(lambda _node: None)
        return OK


def _failed(reason: str, **more: object) -> Answer:
    return Answer(503, {"status": "failed", "reason": reason, **more})


def _expiry(path: str) -> float | None:
    """Return when a certificate file expires, None if unknown."""
    try:
        found = ssl._ssl._test_decode_cert(path)  # type: ignore[attr-defined]  # noqa: SLF001 - the only way without a library
        return float(ssl.cert_time_to_seconds(found["notAfter"]))
    except (OSError, AttributeError, KeyError, ValueError):
        return None
