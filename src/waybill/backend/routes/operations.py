"""Background operations on many jobs: start, show and stop them."""

from __future__ import annotations

from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.errors import invalid, not_found
from waybill.backend.job_form import Form
from waybill.backend.job_query import NAMES
from waybill.backend.message import Request, Response, answer
from waybill.backend.operations import ACTIONS, BulkOperation, Operations
from waybill.backend.router import OPERATE, READ, Route

PATH: Final = "/ojs/v1/admin/operations"
MOST_RATE: Final = 100_000


class OperationRoutes:
    """The routes for operations."""

    def __init__(self, backend: Backend) -> None:
        self._operations = Operations(backend)
        backend.on_close.append(self._operations.close)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", PATH, self._list, READ),
            Route("POST", PATH, self._begin, OPERATE),
            Route("GET", f"{PATH}/{{id}}", self._get, READ),
            Route("POST", f"{PATH}/{{id}}/stop", self._stop, OPERATE),
        ]

    async def _list(self, request: Request) -> Response:
        items = [_form_of(one) for one in self._operations.all(request.tenant)]
        return answer({"items": items, "running": sum(one["ended_at"] is None for one in items)})

    async def _begin(self, request: Request) -> Response:
        """Count the jobs that a filter finds, and change them unless this is a dry run."""
        body, operations = request.json(required=True), self._operations
        action, given, rate = body.get("action"), body.get("filter"), body.get("rate_per_second", 0)
        if not isinstance(action, str) or action not in ACTIONS:
            raise invalid("action", f"must be one of {', '.join(sorted(ACTIONS))}")
        if not isinstance(given, dict) or not any(given.values()):
            raise invalid("filter", "must be an object that selects jobs")
        unknown = sorted(set(given) - NAMES)
        if unknown:
            raise invalid(f"filter.{unknown[0]}", "is not known")
        if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 <= rate <= MOST_RATE:
            raise invalid("rate_per_second", f"must be a number from 0 to {MOST_RATE}")
        operation = operations.make(action, given, float(rate), request.actor, request.tenant)
        wanted = given if not given.get("queue") else {**given, "queue": f"{request.queue_prefix}{given['queue']}"}
        jobs, operation.has_more = await operations.choose(action, wanted, request.queue_prefix)
        operation.matched = len(jobs)
        if body.get("dry_run") is True:
            return answer({**_form_of(operation), "dry_run": True, "state": "planned"})
        await operations.begin(operation, jobs)
        return answer(_form_of(operation), 202, [("Location", f"{PATH}/{operation.id}")])

    async def _get(self, request: Request) -> Response:
        return answer(_form_of(self._known(request)))

    async def _stop(self, request: Request) -> Response:
        """Stop an operation."""
        operation = self._known(request)
        self._operations.stop(operation)
        return answer(_form_of(operation))

    def _known(self, request: Request) -> BulkOperation:
        found = self._operations.get(request.parameters["id"], request.tenant)
        if found is None:
            raise not_found("operation", request.parameters["id"])
        return found


def _form_of(operation: BulkOperation) -> Form:
    form: Form = msgspec.to_builtins(operation)
    del form["tenant"]
    return form
