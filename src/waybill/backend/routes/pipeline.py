"""The last report of the pipeline, and the defaults of job types that operators set because of it.

`waybill pipeline report --json` makes the report where Spark runs; it is uploaded here and stored as a record, so it
survives restarts, and all servers show the same.
"""

from __future__ import annotations

from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.errors import RequestRefused, invalid, not_found
from waybill.backend.extensions import PIPELINE_REPORT, PipelineReport
from waybill.backend.job_form import Form
from waybill.backend.message import Request, Response, answer
from waybill.backend.router import ADMIN, OPERATE, READ, Route
from waybill.backend.type_defaults import read_default
from waybill.ojs.spec.envelope import MAX_ID_LENGTH

REPORT: Final = "/ojs/v1/admin/pipeline/report"
DEFAULTS: Final = "/ojs/v1/admin/job-types"
MOST_BYTES: Final = 256 * 1024
_PARTS: Final = {"totals": dict, "timeline": list, "job_types": list, "recommendations": list}


class PipelineRoutes:
    """The routes for the report and the defaults."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", REPORT, self._get, READ),
            Route("POST", REPORT, self._put, OPERATE),
            Route("GET", DEFAULTS, self._defaults, READ),
            Route("PUT", f"{DEFAULTS}/{{type}}/defaults", self._set, ADMIN),
            Route("DELETE", f"{DEFAULTS}/{{type}}/defaults", self._unset, ADMIN),
        ]

    async def _get(self, _request: Request) -> Response:
        found = self._backend.extensions.reports.get(PIPELINE_REPORT)
        return answer({"report": None} if found is None else {"report": found.report, "sent_at": found.sent_at})

    async def _put(self, request: Request) -> Response:
        """Replace the stored report."""
        report = request.json(required=True)
        for name, kind in _PARTS.items():
            if not isinstance(report.get(name), kind):
                raise invalid(
                    name, f"must be {'an object' if kind is dict else 'an array'}: this does not look like a report"
                )
        encoded = msgspec.json.encode(report)
        if len(encoded) > MOST_BYTES:
            raise RequestRefused("payload_too_large", f"A report has at most {MOST_BYTES} bytes.")
        sent_at = self._backend.now()
        await self._backend.extensions.reports.put(PIPELINE_REPORT, PipelineReport(sent_at, msgspec.Raw(encoded)))
        return answer({"sent_at": sent_at}, 201)

    # --- defaults of job types ---

    async def _defaults(self, _request: Request) -> Response:
        table = self._backend.extensions.type_defaults.table
        items: list[Form] = [{"type": kind, **msgspec.to_builtins(found)} for kind, found in table.items()]
        return answer({"items": items, "count": len(items)})

    async def _set(self, request: Request) -> Response:
        kind, found = _type_of(request), read_default(request.json(required=True))
        await self._backend.extensions.type_defaults.table.put(kind, found)
        return answer({"type": kind, **msgspec.to_builtins(found)})

    async def _unset(self, request: Request) -> Response:
        kind = _type_of(request)
        if not await self._backend.extensions.type_defaults.table.remove(kind):
            raise not_found("default of a job type", kind)
        return answer({"type": kind, "deleted": True})


def _type_of(request: Request) -> str:
    kind = request.parameters["type"]
    if not kind.isprintable() or len(kind) > MAX_ID_LENGTH // 2:
        raise invalid("type", "is not a valid name")
    return kind
