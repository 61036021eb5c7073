"""Requests that require an extension (ojs-extension-lifecycle section 8.3)."""

from __future__ import annotations

import msgspec
import pytest

from tests.backend.conftest import Client
from waybill.backend.capabilities import FEDERATION

JOB = {"type": "email.send", "args": []}


@pytest.mark.parametrize(
    ("header", "missing"),
    [
        ("urn:ojs:ext:rate-limiting", None),
        ("urn:ojs:ext:admin-api, urn:ojs:spec:workflows,", None),
        ("urn:ojs:ext:x:acme:gpu", "urn:ojs:ext:x:acme:gpu"),
        ("urn:ojs:ext:webhooks,nonsense", "nonsense"),
        (FEDERATION, FEDERATION),
    ],
)
@pytest.mark.parametrize("path", ["jobs", "workers/fetch"])
async def test_a_required_extension_is_there_or_the_request_is_refused(
    client: Client, header: str, missing: str | None, path: str
) -> None:
    body = JOB if path == "jobs" else {"queues": ["default"], "worker_id": "w1"}
    response = await client.send("POST", f"/ojs/v1/{path}", body, **{"ojs-requires-extension": header})
    if missing is None:
        assert response.status < 300
        return
    error = msgspec.json.decode(response.body)["error"]
    assert (response.status, error["code"], error["details"]) == (
        422,
        "EXTENSION_NOT_SUPPORTED",
        {"extension": missing},
    )


async def test_what_is_supported_is_in_the_manifest(client: Client) -> None:
    manifest = await client.ask("GET", "/ojs/manifest")
    for uri in manifest["extensions"]:
        response = await client.send("GET", "/ojs/v1/queues", **{"ojs-requires-extension": uri})
        assert response.status == 200
    client.backend.region = "eu-west"
    response = await client.send("GET", "/ojs/v1/queues", **{"ojs-requires-extension": FEDERATION})
    assert response.status == 200
