"""Unique jobs for operators: those that have not ended, and so may be in the way of another."""

from __future__ import annotations

from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.job_form import UNFINISHED, Form
from waybill.backend.job_search import SearchFilter, search
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import page_of
from waybill.backend.router import READ, Route

PATHS: Final = ("/ojs/v1/unique-jobs", "/ojs/v1/admin/unique-jobs")
PER_PAGE: Final = 20
_SHOWN: Final = ("id", "type", "queue", "state", "args", "unique", "created_at")


class UniqueJobRoutes:
    """The routes for unique jobs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("GET", path, self._list, READ) for path in PATHS]

    async def _list(self, request: Request) -> Response:
        queue = request.query.get("queue")
        wanted = SearchFilter([queue] if queue else [], UNFINISHED, request.query.get("type", ""))
        forms = [_form_of(job) for job in await search(self._backend, wanted) if isinstance(job.get("unique"), dict)]
        forms.sort(key=_id_of)
        page, pagination = page_of(request, forms, _id_of, default=PER_PAGE)
        return answer({"items": page, "unique_jobs": page, "count": len(page), "pagination": pagination})


def _form_of(job: Form) -> Form:
    unique = job["unique"]
    form: Form = {name: job[name] for name in _SHOWN if name in job}
    return form | {"job_id": job["id"], **(unique if isinstance(unique, dict) else {})}


def _id_of(form: Form) -> str:
    return str(form["id"])
