"""The health of a server: of its connection to the broker, and of its job database (ojs-http-binding section 8.1).

It is told from what is known already, and a question to each: a health check writes nothing.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.job_form import Form
from waybill.backend.message import SPEC_VERSION
from waybill.client import AccessRefused, ClientError
from waybill.ojs.topology.permissions import require_permissions

SECONDS: Final = 2.0
CONNECTED: Final = "connected"
DATABASE_ERRORS: Final = {
    "unwritable": "the job database cannot be written to, and events wait in the stream",
    "unreachable": "the job database cannot be reached",
    "unresponsive": "the job database does not answer",
}
"""Anyone may ask: the log has the reason, which may name hosts and users."""


class Health:
    """The health of a server. There is one look at a time, however many ask: anyone may, and often."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._looking: asyncio.Task[tuple[Form, bool]] | None = None

    async def look(self) -> tuple[Form, bool]:
        """Return the health, and whether the server can do its work."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(_look_at(self._backend))
        return await asyncio.shield(self._looking)


async def _look_at(backend: Backend) -> tuple[Form, bool]:
    broker, database = await asyncio.gather(_broker_state(backend), _database_state(backend))
    is_well = broker["status"] == database["status"] == CONNECTED
    form: Form = {
        "status": "ok" if is_well else "degraded",
        "version": SPEC_VERSION,
        "uptime_seconds": int(time.monotonic() - backend.started),
        "backend": broker,
        "database": database,
    }
    return form, is_well


async def _broker_state(backend: Backend) -> Form:
    began = time.monotonic()
    connection = backend.broker.connection
    state: Form = {"type": "amqp", "status": CONNECTED}
    try:
        async with asyncio.timeout(SECONDS):
            await connection.wait_ready()
            # A broker without room may answer nothing.
            if connection.blocked is None:
                await require_permissions(connection, backend.broker.declarer.topology)
        state["latency_ms"] = round((time.monotonic() - began) * 1000)
    except AccessRefused:
        state |= {"status": "refused", "error": "the broker refuses this server the permissions that jobs need"}
    except (TimeoutError, ClientError):
        if connection.blocked is None:
            return state | {"status": "disconnected", "error": "the broker cannot be reached"}
    if (reason := connection.blocked) is not None:
        state |= {"status": "blocked", "error": f"the broker accepts no messages: {reason}"}
    return state


async def _database_state(backend: Backend) -> Form:
    view = backend.view
    problem = await view.problem(SECONDS)
    state: Form = {"type": view.kind, "status": problem or CONNECTED, "waiting_messages": view.waiting_count}
    if problem is not None:
        state["error"] = DATABASE_ERRORS[problem]
    return state
