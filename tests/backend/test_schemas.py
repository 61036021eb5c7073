"""The schema registry: arguments of pushes are validated as strictly as operators want."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from tests.backend.conftest import Client, client_of
from waybill.backend.errors import RequestRefused
from waybill.backend.job_form import Form
from waybill.backend.schemas import breaking_changes, compile_schema, order_of

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["customer_id", "amount"],
    "properties": {"customer_id": {"type": "string"}, "amount": {"type": "integer", "minimum": 0}},
    "additionalProperties": False,
}
GOOD = {"customer_id": "c1", "amount": 7}


async def register(client: Client, version: str = "1.0.0", status: int = 201, **fields: object) -> Any:
    body = {"job_type": "invoice.generate", "version": version, "schema": SCHEMA, **fields}
    return await client.ask("POST", "/ojs/v1/schemas", body, status)


async def push(client: Client, *args: object, status: int = 201, **fields: object) -> Any:
    body = {"type": "invoice.generate", "args": list(args), **fields}
    return await client.ask("POST", "/ojs/v1/jobs", body, status)


async def test_versions_are_kept_in_their_order_even_over_a_restart(uri: str) -> None:
    async with client_of(uri) as client:
        for version in ("1.2.0", "1.10.0", "1.9.9"):
            assert (await register(client, version))["schema"]["version"] == version
        await register(client, "1.10.0", 409)
    async with client_of(uri) as client:
        latest = (await client.ask("GET", "/ojs/v1/schemas/invoice.generate"))["schema"]
        assert (latest["version"], latest["schema"]) == ("1.10.0", SCHEMA)
        versions = (await client.ask("GET", "/ojs/v1/schemas/invoice.generate/versions"))["versions"]
        assert [(one["version"], one["is_latest"]) for one in versions] == [
            ("1.10.0", True),
            ("1.9.9", False),
            ("1.2.0", False),
        ]
        await client.ask("DELETE", "/ojs/v1/schemas/invoice.generate/1.10.0")
        await client.ask("DELETE", "/ojs/v1/schemas/invoice.generate/1.10.0", status=404)
        assert (await client.ask("GET", "/ojs/v1/schemas/invoice.generate"))["version"] == "1.9.9"
        assert [one["version"] for one in (await client.ask("GET", "/ojs/v1/schemas"))["schemas"]] == ["1.2.0", "1.9.9"]
        await client.ask("GET", "/ojs/v1/schemas/nothing", status=404)


async def test_the_size_of_all_schemas_is_limited(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand of 64 KB took 700 MB."""
    monkeypatch.setattr("waybill.backend.settings.MOST_BYTES", 100_000)
    large = {"enum": ["x" * 45_000]}
    for version in ("1.0.0", "2.0.0"):
        await register(client, version, schema=large)
    error = (await register(client, "3.0.0", 409, schema=large))["error"]
    assert "bytes" in error["message"]
    await client.ask("PUT", "/ojs/v1/admin/schemas/invoice.generate/2.0.0", {"args_schema": large})


async def test_by_default_wrong_arguments_are_told_of(client: Client) -> None:
    await register(client)
    assert "warnings" not in await push(client, GOOD)
    warnings = (await push(client, {"amount": "x"}))["warnings"]
    assert any("customer_id" in one for one in warnings)
    assert any("amount" in one for one in warnings)
    assert "warnings" not in await client.ask("POST", "/ojs/v1/jobs", {"type": "other.type", "args": [1]}, 201)


async def test_in_strict_mode_they_are_refused(client: Client) -> None:
    await register(client, mode="strict")
    await push(client, GOOD)
    error = (await push(client, {"amount": -1}, status=422))["error"]
    assert error["code"] == "validation_error"
    assert len(error["details"]["validation_errors"]) == 2
    jobs = [{"type": "invoice.generate", "args": [one]} for one in (GOOD, {})]
    error = (await client.ask("POST", "/ojs/v1/jobs/batch", {"jobs": jobs}, 422))["error"]
    assert error["details"]["index"] == 1
    await client.ask("PUT", "/ojs/v1/schemas/invoice.generate/mode", {"mode": "off"})
    assert "warnings" not in await push(client, {})
    await client.ask("PUT", "/ojs/v1/schemas/invoice.generate/mode", {"mode": "odd"}, 400)


async def test_a_large_schema_and_large_arguments_stop_nobody(client: Client) -> None:
    """An error of each argument carried one for each part of the schema: 7 GB for a body of 300 KB."""
    large = {"type": "array", "items": {"anyOf": [{"const": number} for number in range(1000)]}}
    await register(client, schema=large, mode="strict")
    await push(client, *range(1000, 1005), status=422)
    error = (await push(client, *range(200, 1200), status=413))["error"]
    assert error["code"] == "payload_too_large"
    tracemalloc.start()
    try:
        found = (await push(client, *[0] * 200, *range(1000, 1200), status=422))["error"]["details"][
            "validation_errors"
        ]
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert [one.split(":")[0] for one in found] == ["args[200]"]


async def test_a_job_may_name_its_version(client: Client) -> None:
    await register(client, "1.0.0", mode="strict")
    any_array = {"type": "array"}
    await client.ask("PUT", "/ojs/v1/admin/schemas/invoice.generate/2.0", {"args_schema": any_array})
    await push(client, 1)
    await push(client, 1, version="2.0")
    await push(client, 1, version="1.0.0", status=422)
    await push(client, 1, version="7.0.0")


async def test_a_schema_is_found_by_its_uri(client: Client) -> None:
    """The form of ojs-http-binding section 15: a URI, and a version that is a whole number."""
    uri = "urn:ojs:schema:email.send:v1"
    path = f"/ojs/v1/schemas/{uri}"
    schema = {"type": "array", "minItems": 2}
    body = {"uri": uri, "type": "email.send", "version": 1, "schema": schema}
    for status in (201, 409):
        await client.ask("POST", "/ojs/v1/schemas", body, status)
    await client.ask("POST", "/ojs/v1/schemas", body | {"version": 2}, 409)
    await client.ask("POST", "/ojs/v1/schemas", body | {"uri": "urn:other", "version": 2}, 201)
    listed = (await client.ask("GET", "/ojs/v1/schemas"))["schemas"]
    assert [(one["uri"], one["type"], one["version"]) for one in listed] == [
        (uri, "email.send", 1),
        ("urn:other", "email.send", 2),
    ]
    found = (await client.ask("GET", path))["schema"]
    assert {name: found[name] for name in body} == body
    removed = await client.ask("DELETE", path)
    assert (removed["deleted"], removed["uri"]) == (True, uri)
    for method in ("GET", "DELETE"):
        await client.ask(method, path, status=404)
    assert (await register(client, "1.2.0"))["uri"] == "urn:ojs:schema:invoice.generate:v1.2.0"


async def test_a_job_that_names_its_schema_is_validated_by_it(client: Client) -> None:
    """Strictly, as it wants that (ojs-core section 6.1), unless operators have set a mode."""
    body = {"uri": "urn:x", "type": "email.send", "version": 1, "schema": {"type": "array", "minItems": 2}}
    await client.ask("POST", "/ojs/v1/schemas", body, 201)
    job = {"type": "email.send", "args": [1], "schema": "urn:x"}
    error = (await client.ask("POST", "/ojs/v1/jobs", job, 400))["error"]
    assert error["code"] == "schema_validation"
    await client.ask("POST", "/ojs/v1/jobs", job | {"args": [1, 2]}, 201)
    # Another schema is unknown, so only the newest of the type can be checked, and its mode is to warn.
    assert "warnings" in await client.ask("POST", "/ojs/v1/jobs", job | {"schema": "urn:y"}, 201)
    await client.ask("PUT", "/ojs/v1/schemas/email.send/mode", {"mode": "warn"})
    assert "warnings" in await client.ask("POST", "/ojs/v1/jobs", job, 201)


@pytest.mark.parametrize(
    "fields",
    [
        {"schema": {"type": "odd"}},
        {"schema": []},
        {"schema": {"$ref": "https://example.com/schema.json"}},
        {"schema": {"properties": {"a": {"$ref": "file:///etc/passwd"}}}},
        {"schema": {"$ref": "#"}},
        {"schema": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
        {"schema": {"$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a"}}}}, "$ref": "#/$defs/a"}},
        {"schema": {"pattern": "("}},
        {"schema": {"pattern": "(?=a)b"}},
        {"version": "one"},
        {"version": True},
        {"version": -1},
        {"uri": 1},
        {"uri": "no uri"},
        {"uri": "https://example.com/schema"},
        {"version": 1.5},
        {"version": "1.0.0" + "9" * 400},
        {"job_type": "Not Good"},
        {"job_type": None},
        {"mode": "odd"},
    ],
)
async def test_what_is_no_schema_is_refused(client: Client, fields: dict[str, Any]) -> None:
    await register(client, **{"status": 400, **fields})


def test_a_schema_cannot_grow_without_end() -> None:
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    with pytest.raises(RequestRefused):
        compile_schema({"$defs": {**definitions, "d40": {"type": "string"}}, "$ref": "#/$defs/d0"})
    used = {"$defs": {"name": {"type": "string"}}, "items": {"$ref": "#/$defs/name"}}
    assert compile_schema(used).validate(["a", 1]) == ['args[1]: 1 is not of type "string"']


def test_patterns_are_matched_in_linear_time() -> None:
    validate = compile_schema({"items": {"pattern": "^(a+)+$"}}).validate
    assert len(validate(["a" * 50_000 + "b"])) == 1


@pytest.mark.parametrize(
    "schema",
    [
        # 8 KB that took 20 s and 3.6 GB to compile.
        {"allOf": [{"pattern": f"[^\\p{{L}}]{{200}}{n}"} for n in range(300)]},
        {"allOf": [{"pattern": f"[a-z]{{50}}{n}"} for n in range(1000)]},
        {"patternProperties": {f"[a-z]{{50}}{n}": True for n in range(1000)}},
        {"$defs": {"a": {"pattern": "[a-z]{1000}"}}, "allOf": [{"$ref": "#/$defs/a"}] * 100},
    ],
)
def test_patterns_that_take_much_memory_are_refused(schema: Form) -> None:
    with pytest.raises(RequestRefused, match="too large"):
        compile_schema(schema)


def test_a_long_text_is_not_matched_with_large_patterns() -> None:
    """Each octet may keep a pattern in all of its states: 100 KB took seconds."""
    validate = compile_schema({"items": {"pattern": "((a|b)?){1000}c"}}).validate
    assert len(validate(["ab" * 100])) == 1
    with pytest.raises(RequestRefused):
        validate(["ab" * 50_000])
    address = compile_schema({"items": {"pattern": "^[^@]+@[^@]+[.][^@]+$"}}).validate
    assert address(["a@example.com", "b@example.com " + "a" * 100_000]) == []


def test_unevaluated_members_of_a_nested_schema_are_refused() -> None:
    """Each level evaluates those below it again: 22 took a minute."""

    def nested(levels: int, keyword: str, members: str) -> Form:
        schema: Form = {"type": "object", "properties": {"a": True}}
        for _ in range(levels):
            schema = {keyword: [schema] if keyword.endswith("Of") else schema, members: False}
        return schema

    for keyword in ("allOf", "anyOf", "oneOf", "if"):
        assert compile_schema(nested(3, keyword, "unevaluatedProperties")).validate({"a": 1}) == []
        for members in ("unevaluatedProperties", "unevaluatedItems"):
            with pytest.raises(RequestRefused, match="parts"):
                compile_schema(nested(20, keyword, members))


def test_multiples_of_fractions_count_for_more() -> None:
    validate = compile_schema({"items": {"multipleOf": 1e-300}}).validate
    assert validate([1e300] * 5000) == []
    with pytest.raises(RequestRefused):
        validate([1e300] * 50_000)


async def test_compiled_schemas_take_bounded_memory(client: Client) -> None:
    schemas = client.backend.extensions.schemas
    for number in range(40):
        schema = {"items": {"pattern": f"[a-z]{{1000}}{number}"}}
        await client.ask("PUT", f"/ojs/v1/admin/schemas/a.job/{number}.0", {"args_schema": schema})
        await client.ask("POST", "/ojs/v1/jobs", {"type": "a.job", "args": ["a"]}, 201)
    assert 10 < len(schemas._compiled) < 40


def test_versions_are_ordered_as_semver_says() -> None:
    ordered = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0", "1.2", "1.10.0"]
    shuffled = ordered[4:] + ordered[:4]
    assert sorted(shuffled, key=order_of) == ordered


async def test_what_breaks_needs_a_new_major_version(client: Client) -> None:
    await register(client)
    broken = {**SCHEMA, "required": ["customer_id", "amount", "currency"]}
    error = (await register(client, "1.1.0", 422, schema=broken))["error"]
    assert error["details"]["breaking_changes"] == ["Required field 'currency' was added"]
    await register(client, "2.0.0", schema=broken)


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        ({"maxLength": 100}, {"maxLength": 50}, 1),
        ({"maxLength": 50}, {"maxLength": 100}, 0),
        ({}, {"minimum": 1}, 1),
        ({"type": "integer"}, {"type": "string"}, 1),
        ({}, {"additionalProperties": False}, 1),
        ({"additionalProperties": False}, {}, 0),
        ({"properties": {"a": {}}}, {"properties": {}}, 1),
        ({"properties": {"a": {}}}, {"properties": {"a": {}, "b": {}}}, 0),
        ({"properties": {"a": {"maximum": 5}}}, {"properties": {"a": {"maximum": 4}}}, 1),
    ],
)
def test_what_breaks_is_found(before: dict[str, object], after: dict[str, object], count: int) -> None:
    assert len(breaking_changes(before, after)) == count
