"""The schema registry (ojs-schema-registry section 10, ojs-job-versioning section 11)."""

from __future__ import annotations

import re
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.errors import RequestRefused, invalid, not_found
from waybill.backend.job_form import Form
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import page_of
from waybill.backend.router import ADMIN, READ, Route
from waybill.backend.schemas import MODES, Mode, Schema, Schemas, name_of, order_of

MAX_TYPE: Final = 200
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}:[A-Za-z0-9._~:?#@!$&'()*+,;=%\[\]-]{1,255}")
_TYPE = re.compile(r"[a-z][a-z0-9_\-]*(\.[a-z][a-z0-9_\-]*)*")


class SchemaRoutes:
    """The routes for schemas."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("POST", "/ojs/v1/schemas", self._register, ADMIN),
            Route("GET", "/ojs/v1/schemas", self._list, READ),
            Route("GET", "/ojs/v1/schemas/{type}", self._latest, READ),
            Route("DELETE", "/ojs/v1/schemas/{type}", self._remove_named, ADMIN),
            Route("GET", "/ojs/v1/schemas/{type}/versions", self._versions, READ),
            Route("GET", "/ojs/v1/schemas/{type}/mode", self._mode, READ),
            Route("PUT", "/ojs/v1/schemas/{type}/mode", self._set_mode, ADMIN),
            Route("GET", "/ojs/v1/schemas/{type}/{version}", self._get, READ),
            Route("DELETE", "/ojs/v1/schemas/{type}/{version}", self._remove, ADMIN),
            Route("GET", "/ojs/v1/admin/schemas", self._list, READ),
            Route("GET", "/ojs/v1/admin/schemas/{type}", self._versions, READ),
            Route("PUT", "/ojs/v1/admin/schemas/{type}/{version}", self._replace, ADMIN),
        ]

    @property
    def _schemas(self) -> Schemas:
        return self._backend.extensions.schemas

    async def _register(self, request: Request) -> Response:
        body = request.json(required=True)
        schema = _schema_of(body, body.get("job_type", body.get("type")), body.get("version"), "schema")
        mode = _mode_of(body, default=None)
        if not await self._schemas.register(schema, replaces=False):
            details: Form = {"job_type": schema.job_type, "version": schema.version}
            raise RequestRefused("conflict", "A schema of this type and version already exists.", details=details)
        if mode is not None:
            await self._schemas.modes.put(schema.job_type, Mode(mode))
        return self._answer(schema, 201)

    async def _replace(self, request: Request) -> Response:
        body, named = request.json(required=True), request.parameters
        schema = _schema_of(body, named["type"], named["version"], "args_schema" if "args_schema" in body else "schema")
        await self._schemas.register(schema, replaces=True)
        return self._answer(schema)

    async def _list(self, request: Request) -> Response:
        page, pagination = page_of(request, self._schemas.versions.items(), lambda one: one[0])
        items = [self._form_of(schema) for _, schema in page]
        return answer({"schemas": items, "items": items, "count": len(items), "pagination": pagination})

    async def _latest(self, request: Request) -> Response:
        return self._answer(self._schemas.with_uri(request.parameters["type"]) or self._of_type(request)[0])

    async def _versions(self, request: Request) -> Response:
        found = self._of_type(request)
        versions = [
            {
                "version": one.shown_version,
                "uri": one.uri,
                "created_at": self._created_at(one),
                "is_latest": one is found[0],
            }
            for one in found
        ]
        forms = [self._form_of(one) for one in found]
        return answer({"job_type": found[0].job_type, "versions": versions, "schemas": forms, "count": len(forms)})

    async def _get(self, request: Request) -> Response:
        return self._answer(self._one(request))

    async def _remove(self, request: Request) -> Response:
        return await self._removed(self._one(request))

    async def _remove_named(self, request: Request) -> Response:
        uri = request.parameters["type"]
        schema = self._schemas.with_uri(uri)
        if schema is None:
            raise not_found("schema", uri)
        return await self._removed(schema)

    async def _removed(self, schema: Schema) -> Response:
        await self._schemas.versions.remove(name_of(schema.job_type, schema.version))
        form = {"job_type": schema.job_type, "version": schema.shown_version, "uri": schema.uri}
        return answer({"deleted": True, **form})

    async def _mode(self, request: Request) -> Response:
        job_type = request.parameters["type"]
        return answer({"job_type": job_type, "mode": self._schemas.mode_of(job_type)})

    async def _set_mode(self, request: Request) -> Response:
        job_type, mode = request.parameters["type"], _mode_of(request.json(required=True), default="")
        if job_type != "*":
            _check_type(job_type)
        await self._schemas.modes.put(job_type, Mode(str(mode)))
        return answer({"job_type": job_type, "mode": mode})

    def _of_type(self, request: Request) -> list[Schema]:
        found = self._schemas.of_type(request.parameters["type"])
        if not found:
            raise not_found("schema", request.parameters["type"])
        return found

    def _one(self, request: Request) -> Schema:
        name = name_of(request.parameters["type"], request.parameters["version"])
        found = self._schemas.versions.get(name)
        if found is None:
            raise not_found("schema", name)
        return found

    def _answer(self, schema: Schema, status: int = 200) -> Response:
        form = self._form_of(schema)
        return answer({**form, "schema": form}, status)

    def _form_of(self, schema: Schema) -> Form:
        form: Form = {"uri": schema.uri, "type": schema.job_type, "job_type": schema.job_type}
        form |= {"version": schema.shown_version, "schema": schema.schema}
        form["created_at"] = self._created_at(schema)
        form["mode"] = self._schemas.mode_of(schema.job_type)
        if schema.compatible_with:
            form["compatible_with"] = schema.compatible_with
        return form

    def _created_at(self, schema: Schema) -> str:
        return self._schemas.versions.created_at(name_of(schema.job_type, schema.version))


def _schema_of(body: Form, job_type: object, version: object, field: str) -> Schema:
    if not isinstance(job_type, str):
        raise invalid("job_type", "must be a string")
    _check_type(job_type)
    has_number = isinstance(version, int) and not isinstance(version, bool)
    if has_number:
        version = f"{version}.0.0"
    if not isinstance(version, str):
        raise invalid("version", "must be a string or a whole number")
    order_of(version)
    uri = body.get("uri", "")
    if not isinstance(uri, str) or (uri and _URI.fullmatch(uri) is None):
        raise invalid("uri", "must be a URI without '/', such as urn:ojs:schema:email.send:v1")
    schema, compatible = body.get(field), body.get("compatible_with", [])
    if not isinstance(schema, dict):
        raise invalid(field, "must be a JSON Schema")
    if not isinstance(compatible, list) or not all(isinstance(one, str) for one in compatible):
        raise invalid("compatible_with", "must be an array of versions")
    return Schema(job_type, version, schema, compatible, uri, has_number)


def _check_type(job_type: str) -> None:
    if len(job_type) > MAX_TYPE or _TYPE.fullmatch(job_type) is None:
        raise invalid("job_type", f"must be a job type of at most {MAX_TYPE} characters")


def _mode_of(body: Form, default: str | None) -> str | None:
    validation = body.get("validation")
    mode = body.get("mode", validation.get("mode") if isinstance(validation, dict) else None)
    if mode is None and default is None:
        return None
    if not isinstance(mode, str) or mode not in MODES:
        raise invalid("mode", f"must be one of {', '.join(sorted(MODES))}")
    return mode
