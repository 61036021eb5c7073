"""Whatever is asked for gets an answer of the error catalogue, with the headers of every answer."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.backend.conftest import Client
from waybill.backend.application import Application
from waybill.backend.errors import KINDS, RequestRefused
from waybill.backend.keys import InvalidKeyFile, KeyRing, add_key, read_keys
from waybill.backend.message import Request, Response, answer
from waybill.backend.router import ADMIN, OPEN, OPERATE, READ, Route
from waybill.ojs.errors import InvalidJob, JobTooLarge, PushFailed

JSON = {"content-type": "application/json"}


async def _echo(request: Request) -> Response:
    return answer({"parameters": request.parameters, "body": request.json()})


def _failing(error: Exception) -> Application:
    async def fail(_request: Request) -> Response:
        raise error

    return Application([Route("GET", "/fail", fail, OPEN)])


ROUTES = [
    Route("GET", "/things", _echo, READ),
    Route("POST", "/things", _echo, OPERATE),
    Route("GET", "/things/{id}", _echo, READ),
    Route("DELETE", "/things/{id}", _echo, ADMIN),
    Route("POST", "/things/{id}/do", _echo, OPERATE),
    Route("GET", "/open", _echo, OPEN),
]


async def ask(application: Application, method: str, path: str, **fields: Any) -> tuple[int, Any, Mapping[str, str]]:
    response = await application.handle(Request(method, path, **fields))
    found = msgspec.json.decode(response.body) if response.body else None
    return response.status, found, dict(response.headers)


async def test_paths_find_what_answers_them() -> None:
    application = Application(ROUTES)
    assert (await ask(application, "GET", "/things/7"))[1]["parameters"] == {"id": "7"}
    assert (await ask(application, "POST", "/things/7/do"))[1]["parameters"] == {"id": "7"}
    assert (await ask(application, "HEAD", "/things"))[0] == 200
    for path in ("/", "", "/thing", "/things/7/undo", "/things/7/do/it", "/things/7/", "//", "/things//do"):
        status, found, _ = await ask(application, "GET", path)
        assert (status, found["error"]["code"]) in {(404, "not_found"), (405, "method_not_allowed")}, path


async def test_a_method_that_is_not_there_is_told_what_is() -> None:
    application = Application(ROUTES)
    for method in ("PUT", "BREW", "", "GET\n"):
        status, found, headers = await ask(application, method, "/things")
        assert (status, found["error"]["code"]) == (405, "method_not_allowed")
        assert headers["Allow"] == "GET, HEAD, OPTIONS, POST"
    status, found, headers = await ask(application, "OPTIONS", "/things/7")
    assert (status, found, headers["Allow"]) == (204, None, "DELETE, GET, HEAD, OPTIONS")


async def test_every_answer_has_its_headers() -> None:
    application = Application(ROUTES)
    for method, path in (("GET", "/things"), ("GET", "/nothing"), ("PUT", "/things")):
        _, found, headers = await ask(application, method, path, headers={"x-request-id": "mine-7"})
        assert headers["Content-Type"] == "application/openjobspec+json"
        assert (headers["OJS-Version"], headers["X-Request-ID"]) == ("1.0", "mine-7")
        assert "error" not in found or found["error"]["request_id"] == "mine-7"
    for odd in ("", "x" * 129, "a\r\nSet-Cookie: b", "é"):
        _, _, headers = await ask(application, "GET", "/things", headers={"x-request-id": odd})
        assert headers["X-Request-ID"].startswith("req_0")
    _, _, headers = await ask(application, "GET", "/things", headers={"user-agent": "python-httpx/0.28"})
    assert headers["Content-Type"] == 'application/openjobspec+json; alt="application/json"'


@pytest.mark.parametrize("code", KINDS)
async def test_an_error_says_all_that_the_catalogue_asks_for(code: str) -> None:
    status, found, headers = await ask(_failing(RequestRefused(code, "No.", details={"a": 1})), "GET", "/fail")
    error = found["error"]
    assert status == KINDS[code].status
    shown = {"code", "type", "message", "hint", "docs_url", "request_id", "retryable", "details"}
    assert set(error) == (shown | {"a"} if KINDS[code].shows_details else shown)
    assert (error["code"], error["retryable"]) == (code, KINDS[code].is_retryable)
    assert (error["details"], error["hint"] != "") == ({"a": 1}, True)
    assert ("Retry-After" in headers) == (status in {429, 503})
    assert ("WWW-Authenticate" in headers) == (status == 401)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidJob("args[0]", "is odd"), 400, "invalid_request"),
        (InvalidJob("retry.max_attempts", "is odd", code="INVALID_RETRY_POLICY"), 422, "validation_error"),
        (InvalidJob("body", "is long", code="PAYLOAD_TOO_LARGE"), 413, "payload_too_large"),
        (JobTooLarge("meta", 70_000, 65_536, code="METADATA_TOO_LARGE"), 413, "payload_too_large"),
        (PushFailed("1", "QUEUE_FULL", "no"), 429, "QUEUE_FULL"),
        (PushFailed("1", "BACKEND_UNAVAILABLE", "no"), 503, "backend_unavailable"),
        (TimeoutError(), 504, "backend_timeout"),
        (KeyError("secret"), 500, "backend_error"),
    ],
)
async def test_what_goes_wrong_inside_is_told_in_the_words_of_the_binding(
    error: Exception, status: int, code: str
) -> None:
    found_status, found, _ = await ask(_failing(error), "GET", "/fail")
    assert (found_status, found["error"]["code"]) == (status, code)
    assert "secret" not in str(found)


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        (b"{ invalid json }", JSON, "invalid_payload"),
        (b"[1]", JSON, "invalid_payload"),
        (b"\xff", JSON, "invalid_payload"),
        (b"[" * 100_000, JSON, "invalid_payload"),
        (b'{"a": ' + b"[" * 3000 + b"]" * 3000 + b"}", JSON, "invalid_payload"),
        (b"{}", {"content-type": "text/xml"}, "invalid_request"),
        (b"a=b", {"content-type": "application/x-www-form-urlencoded"}, "invalid_request"),
    ],
)
async def test_a_body_that_is_no_object_is_refused(body: bytes, headers: dict[str, str], code: str) -> None:
    status, found, _ = await ask(Application(ROUTES), "POST", "/things", body=body, headers=dict(headers))
    assert (status, found["error"]["code"]) == (400, code)


async def test_keys_open_what_their_role_allows(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = {role: add_key(path, role, role) for role in ("read", "operate", "admin")}
    assert path.stat().st_mode & 0o777 == 0o600
    assert not any(key in path.read_text() for key in keys.values())
    application = Application(ROUTES, read_keys(path))
    wanted = {("GET", "/things"): 0, ("POST", "/things"): 1, ("DELETE", "/things/7"): 2}
    for rank, key in enumerate(keys.values()):
        for (method, where), least in wanted.items():
            for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
                status, _, _ = await ask(application, method, where, headers=headers)
                assert status == (200 if rank >= least else 403)
    for shown in (
        {},
        {"authorization": "Bearer wb_no"},
        {"authorization": f"Basic {keys['admin']}"},
        {"x-api-key": "é"},
    ):
        assert (await ask(application, "GET", "/things", headers=dict(shown)))[0] == 401
    assert (await ask(application, "GET", "/open"))[0] == 200
    replaced = add_key(path, "admin", "admin")
    renewed = Application(ROUTES, read_keys(path))
    assert (await ask(renewed, "GET", "/things", headers={"x-api-key": keys["admin"]}))[0] == 401
    assert (await ask(renewed, "GET", "/things", headers={"x-api-key": replaced}))[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:8080"}, 200),
        ({"host": "127.0.0.1:8080", "origin": "http://127.0.0.1:8080"}, 200),
        ({"host": "[::1]:8080"}, 200),
        ({"host": "[::1]"}, 200),
        ({"host": "localhost:8080", "origin": "https://evil.example"}, 403),
        ({"host": "localhost:8080", "origin": "http://localhost:3000"}, 403),
        ({"host": "localhost:8080", "origin": "null"}, 403),
        ({"host": "rebound.example:8080", "origin": "http://rebound.example:8080"}, 403),
        ({"host": "rebound.example"}, 403),
        ({"host": "127.0.0.1.rebound.example", "origin": "http://127.0.0.1.rebound.example"}, 403),
        ({"host": "127.rebound.example:8080"}, 403),
        ({"host": "127.0.0.1"}, 200),
    ],
)
async def test_without_keys_no_page_of_others_gets_in(headers: dict[str, str], status: int) -> None:
    assert (await ask(Application(ROUTES), "POST", "/things", headers=dict(headers)))[0] == status
    with_keys = Application([Route("POST", "/things", _echo, OPEN)], KeyRing([]))
    assert (await ask(with_keys, "POST", "/things", headers=dict(headers)))[0] == 200


def test_a_file_without_keys_lets_nobody_in_by_mistake(tmp_path: Path) -> None:
    for text in ("", "{}", '{"keys": []}', '{"keys": [{"name": "a", "role": "god", "hash": ""}]}', "[]"):
        path = tmp_path / "keys.json"
        path.write_text(text)
        with pytest.raises(InvalidKeyFile):
            read_keys(path)
    assert KeyRing([])


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = """
id type args meta options queue priority retry unique scheduled_at delay_until expires_at timeout_ms tags schema
visibility_timeout_ms specversion queues count worker_id wait job_id error requeue active_jobs jobs name cron
steps depends_on callbacks on_success rate_limit concurrency limit period on_limit pending states strategy filter ids
confirm override unique on_conflict enabled expires_at rate_limit_until expression job_template timezone
initial_interval_ms max_attempts key period_ms keys max_interval
"""
PATHS = """
jobs jobs/batch workers/fetch workers/ack workers/nack workers/heartbeat cron cron/x/pause queues/x/pause
queues/x/purge queues workflows rate-limits/x dead-letter/retry dead-letter/purge jobs/x/activate
queues/%00/resume dead-letter/x/retry jobs/x
"""
_fields = st.sampled_from(FIELDS.split())
_bodies = st.recursive(
    st.dictionaries(_fields, _values, max_size=4), lambda inner: st.dictionaries(_fields, inner | _values), max_leaves=5
)
_paths = st.sampled_from(PATHS.split())


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=_paths, body=_bodies)
async def test_no_body_brings_the_server_down(client: Client, path: str, body: dict[str, object]) -> None:
    if isinstance(body.get("type"), str) and path == "jobs":
        body["type"] = "email.send"
        body.setdefault("args", [])
    response = await client.send("POST", f"/ojs/v1/{path}", body)
    assert response.status < 500, (path, body, response.body)


async def test_a_refused_request_is_released() -> None:
    """The collector comes rarely: a hundred refused bodies of 1 MB took 300 MB."""

    async def refuse(request: Request) -> Response:
        raise InvalidJob("args", f"have {len(request.body)} octets")

    application = Application([Route("POST", "/fail", refuse, OPEN)])
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            assert (await ask(application, "POST", "/fail", body=b"x" * 1000))[0] == 400
        assert not any(isinstance(one, Request) for one in gc.get_objects())
    finally:
        gc.enable()


async def test_a_duplicate_is_released(client: Client) -> None:
    unique = {"queue": "email", "unique": {"keys": ["type"], "period": "PT1H"}}
    body = {"type": "email.send", "args": ["x"], "options": unique}
    await client.ask("POST", "/ojs/v1/jobs", body, 201)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            await client.ask("POST", "/ojs/v1/jobs", body, 409)
        assert not any(isinstance(one, PushFailed) for one in gc.get_objects())
    finally:
        gc.enable()
