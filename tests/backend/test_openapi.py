"""The OpenAPI document tells of what is served, all of it, and the page shows it without anything from elsewhere."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tests.backend.conftest import Client
from waybill.backend.openapi.operations import OPERATIONS
from waybill.backend.routes import routes_of


async def _document(client: Client) -> Any:
    response = await client.send("GET", "/ojs/v1/openapi.json")
    assert dict(response.headers)["Content-Type"] == "application/json"
    return msgspec.json.decode(response.body)


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for one in value.values() for found in _references(one)]
    return [found for one in value for found in _references(one)] if isinstance(value, list) else []


async def test_every_route_is_in_the_document(client: Client) -> None:
    document = await _document(client)
    told = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    # The dashboard's files are no part of the API.
    served = {
        route[:2] for route in routes_of(client.backend) if route.path.startswith(("/ojs/", "/metrics", "/codec/"))
    }
    assert told == served
    assert set(OPERATIONS) <= served
    ids = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(set(ids)) == len(ids)


async def test_the_document_holds_together(client: Client) -> None:
    document = await _document(client)
    assert document["openapi"].startswith("3.1")
    schemas = document["components"]["schemas"]
    assert {one.removeprefix("#/components/schemas/") for one in _references(document)} <= set(schemas)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
            assert any(status.startswith("2") or status == "101" for status in operation["responses"])
            assert all(one["description"] for one in operation["responses"].values())


async def test_a_key_that_was_used_for_another_request_is_documented(client: Client) -> None:
    for path, methods in (await _document(client))["paths"].items():
        for method, operation in methods.items():
            if "Idempotency-Key" in operation.get("description", ""):
                assert "409" in operation["responses"], (method, path)
    bulk = (await _document(client))["paths"]["/ojs/v1/admin/jobs/bulk/retry"]["post"]
    assert "Idempotency-Key" in bulk["description"]


async def test_the_page_shows_every_operation_and_needs_nothing_from_elsewhere(client: Client) -> None:
    response = await client.send("GET", "/ojs/v1/docs")
    headers = dict(response.headers)
    page = response.body.decode()
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    for path in (await _document(client))["paths"]:
        assert path in page
    assert "<script" not in page
    assert re.findall(r"(?:src|href)=\"(?!#|openapi\.json)", page) == []
    assert "url(" not in page
    for name in re.findall(r'href="#([^"]+)"', page):
        assert f'id="{name}"' in page


async def test_a_cron_job_that_is_registered_again_is_documented(client: Client) -> None:
    body = {"name": "nightly", "expression": "0 0 * * *", "job_template": {"type": "report.make", "args": []}}
    found = {(await client.send("POST", "/ojs/v1/cron", body)).status for _ in range(2)}
    assert found == {200, 201}
    assert {str(one) for one in found} <= set((await _document(client))["paths"]["/ojs/v1/cron"]["post"]["responses"])
