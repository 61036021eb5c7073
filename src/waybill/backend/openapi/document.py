"""Makes the document from routes, operations, structs and the error catalogue."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from waybill import __version__
from waybill.backend.errors import KINDS
from waybill.backend.idempotency import METHODS, UNKEYED
from waybill.backend.message import MEDIA_TYPE
from waybill.backend.openapi.answers import ErrorAnswer
from waybill.backend.openapi.operation import Operation
from waybill.backend.openapi.operations import operation_of
from waybill.backend.router import OPEN, Route

REF_TEMPLATE: Final = "#/components/schemas/{name}"
_ALWAYS: Final = (
    "invalid_request",
    "not_found",
    "headers_too_large",
    "rate_limited",
    "backend_error",
    "backend_unavailable",
    "backend_timeout",
)
_WITH_KEY: Final = ("unauthenticated", "permission_denied", "EXTENSION_NOT_SUPPORTED")
_WITH_BODY: Final = ("invalid_payload", "validation_error", "payload_too_large", "UNSUPPORTED_COMPRESSION")

Json = dict[str, Any]


def document_of(routes: Sequence[Route]) -> Json:
    """Return the OpenAPI 3.1 document of these routes."""
    operations = [(route, operation_of(*route[:2])) for route in routes]
    schemas, components = msgspec.json.schema_components(
        list(_types_of([operation for _, operation in operations])), ref_template=REF_TEMPLATE
    )
    found = dict(zip(_types_of([operation for _, operation in operations]), schemas, strict=True))
    paths: dict[str, Json] = {}
    for route, operation in operations:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, operation, found)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Waybill: the Open Job Spec over HTTP",
            "version": __version__,
            "description": "Push, process and inspect jobs. This document is generated from the routes of the server.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"key": []}],
        "tags": [{"name": name} for name in sorted({operation.tag for _, operation in operations})],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _types_of(operations: Sequence[Operation]) -> Iterator[object]:
    """Yield each type once."""
    seen: dict[object, None] = {ErrorAnswer: None}
    for operation in operations:
        for one in (operation.body, *operation.answers.values(), *(each.type for each in operation.parameters)):
            if one is not None:
                seen[one] = None
    yield from seen


def _operation(route: Route, operation: Operation, schemas: dict[object, Json]) -> Json:
    made: Json = {
        "operationId": operation_id(route),
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": _parameters(route, operation, schemas),
        "responses": _responses(route, operation, schemas),
    }
    if route.role == OPEN:
        made["security"] = []
    else:
        made["description"] = f"Needs a key with the role {route.role} if the server has keys."
        if _may_be_repeated(route):
            made["description"] += " With the header Idempotency-Key, repeated requests take effect once."
    if operation.body is not None:
        content = {
            MEDIA_TYPE: {"schema": schemas[operation.body]},
            "application/json": {"schema": schemas[operation.body]},
        }
        made["requestBody"] = {"required": operation.is_body_required, "content": content}
    return made


def operation_id(route: Route) -> str:
    """Return a name that is stable as long as the route is."""
    path = route.path if route.path.startswith("/ojs/") else f"/root{route.path}"
    words = re.findall(r"[a-zA-Z0-9]+", path.removeprefix("/ojs/v1").removeprefix("/ojs"))
    return "_".join([route.method.lower(), *words])


def _parameters(route: Route, operation: Operation, schemas: dict[object, Json]) -> list[Json]:
    found: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1, "maxLength": 255}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    return found + [
        {"name": one.name, "in": one.place, "description": one.description, "schema": schemas[one.type]}
        for one in operation.parameters
    ]


def _responses(route: Route, operation: Operation, schemas: dict[object, Json]) -> Json:
    responses: Json = {}
    by_status: dict[int, list[str]] = {}
    for code in _codes(route, operation):
        by_status.setdefault(KINDS[code].status, []).append(code)
    for status, codes in sorted(by_status.items()):
        text = f"An error with the code {' or '.join(codes)}."
        responses[str(status)] = {"description": text, "content": {MEDIA_TYPE: {"schema": schemas[ErrorAnswer]}}}
    for status, kind in operation.answers.items():
        answer: Json = responses.setdefault(str(status), {"description": ""})
        answer["description"] = f"{HTTPStatus(status).phrase}. {answer['description']}".strip()
        if kind is not None:
            media_type = operation.media_type or MEDIA_TYPE
            given = answer.get("content", {}).get(MEDIA_TYPE)
            schema = schemas[kind] if media_type.endswith("json") else {"type": "string"}
            if given is not None:
                schema = {"anyOf": [schema, given["schema"]]}
            answer["content"] = {media_type: {"schema": schema}}
    return dict(sorted(responses.items()))


def _codes(route: Route, operation: Operation) -> Iterator[str]:
    seen: dict[str, None] = dict.fromkeys(_ALWAYS)
    if route.role != OPEN:
        seen |= dict.fromkeys(_WITH_KEY)
        if _may_be_repeated(route):
            seen["conflict"] = None
    else:
        seen["permission_denied"] = None
    if operation.body is not None:
        seen |= dict.fromkeys(_WITH_BODY)
    seen |= dict.fromkeys(operation.errors)
    yield from seen


def _may_be_repeated(route: Route) -> bool:
    return route.method in METHODS and route.path not in UNKEYED
