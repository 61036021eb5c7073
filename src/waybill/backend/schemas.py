"""The schemas of arguments, by job type and version (ojs-schema-registry).

A schema is JSON Schema 2020-12 for `args`; one for an object applies to the first and only argument. Nothing outside of
a schema is ever fetched, and its patterns are matched in linear time, so a schema cannot make a push hang.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import Form
from waybill.backend.schema_cost import MAX_PATTERN_BYTES, STATE_BYTES, SchemaRefused, cost_of
from waybill.backend.settings import Settings

STRICT: Final = "strict"
WARN: Final = "warn"
OFF: Final = "off"
MODES: Final = frozenset({STRICT, WARN, OFF})
MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_VERSIONS: Final = 100
MAX_ERRORS: Final = 20
COMPILED_BYTES: Final = 32 << 20
"""The memory for compiled schemas."""
MAX_STEPS: Final = 1_000_000
"""The maximum of steps of a validation, so that it does not delay other requests."""
MAX_LISTED_STEPS: Final = 10_000
"""For larger arguments, only the first error is reported."""
MESSAGE_LENGTH: Final = 200

_VERSION = re.compile(r"(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})(?:\.(0|[1-9]\d{0,5}))?(?:-([0-9A-Za-z.-]{1,64}))?")
_NARROWING: Final = {"maxLength": 1, "maximum": 1, "maxItems": 1, "minLength": -1, "minimum": -1, "minItems": -1}

_log = logging.getLogger("waybill.backend")


class Compiled(NamedTuple):
    """A compiled schema: returns the errors of arguments, and takes about `memory_bytes`."""

    validate: Callable[[object], list[str]]
    memory_bytes: int


class Schema(msgspec.Struct, omit_defaults=True):
    """A version of a schema. `has_number`: its version was given as a whole number (ojs-http-binding section 15)."""

    job_type: str
    version: str
    schema: Form
    compatible_with: list[str] = msgspec.field(default_factory=list)
    given_uri: str = ""
    has_number: bool = False

    @property
    def shown_version(self) -> str | int:
        """The version as it was given."""
        return order_of(self.version)[0] if self.has_number else self.version

    @property
    def uri(self) -> str:
        """The URI by which jobs name this schema (ojs-core section 5.2, schema)."""
        return self.given_uri or f"urn:ojs:schema:{self.job_type}:v{self.shown_version}"


class Mode(msgspec.Struct):
    """How strictly a job type is validated; the name `*` is the default for all types."""

    mode: str


class Schemas:
    """All schemas that one server knows."""

    def __init__(self, settings: Settings) -> None:
        self.versions = settings.table("schema", Schema)
        self.modes = settings.table("schema-mode", Mode)
        self._compiled: dict[bytes, Compiled] = {}
        self._compiled_bytes = 0
        self._indexed = -1
        self._by_uri: dict[str, Schema] = {}
        self._by_type: dict[str, list[Schema]] = {}
        """The schemas as of the version `_indexed` of the table; those of a type are newest first."""

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to validate."""
        return not self.versions

    def of_type(self, job_type: str) -> list[Schema]:
        """Return the versions of a schema, newest first."""
        self._index()
        return self._by_type.get(job_type, [])

    def with_uri(self, uri: object) -> Schema | None:
        """Return the schema with a URI, None if there is none."""
        self._index()
        return self._by_uri.get(uri) if isinstance(uri, str) else None

    def mode_of(self, job_type: str, default: str = WARN) -> str:
        """Return how strictly a type is validated."""
        found = self.modes.get(job_type) or self.modes.get("*")
        return default if found is None else found.mode

    def _index(self) -> None:
        # Every push looks here.
        if self._indexed == self.versions.version:
            return
        self._indexed = self.versions.version
        known = self.versions.known.values()
        self._by_uri = {schema.uri: schema for schema in known}
        self._by_type = {}
        for schema in sorted(known, key=lambda one: order_of(one.version), reverse=True):
            self._by_type.setdefault(schema.job_type, []).append(schema)

    async def register(self, schema: Schema, *, replaces: bool) -> bool:
        """Store a schema; False if this version exists. Raises RequestRefused if it is invalid."""
        compile_schema(schema.schema)
        named = self.with_uri(schema.uri)
        if named is not None and (named.job_type, named.version) != (schema.job_type, schema.version):
            details: Form = {"uri": schema.uri}
            raise RequestRefused("conflict", "Another schema has this URI.", details=details)
        known = self.of_type(schema.job_type)
        older = [one for one in known if order_of(one.version) < order_of(schema.version)]
        if not replaces and len(known) >= MAX_VERSIONS:
            raise RequestRefused("conflict", f"This schema has {MAX_VERSIONS} versions, the maximum.")
        if older and order_of(older[0].version)[0] == order_of(schema.version)[0]:
            changes = breaking_changes(older[0].schema, schema.schema)
            if changes:
                text = f"Version {schema.version} is incompatible with {older[0].version}: raise the major version."
                details = {"breaking_changes": changes}
                raise RequestRefused("validation_error", text, details=details)
        return await self.versions.put(name_of(schema.job_type, schema.version), schema, is_new=not replaces)

    def check(self, job: Mapping[str, object]) -> list[str]:
        """Return warnings about the arguments of a job. Raises RequestRefused for invalid ones in strict mode.

        A job that names a schema is validated strictly, unless a mode is set.
        """
        job_type, version = job.get("type"), job.get("version")
        if not isinstance(job_type, str):
            return []
        named = self.with_uri(job.get("schema"))
        mode = self.mode_of(job_type, WARN if named is None else STRICT)
        schema = None if mode == OFF else named or self._schema_for(job_type, version)
        if schema is None:
            return []
        errors = self._validate(schema, job.get("args"))
        if errors and mode == STRICT:
            text = f"The arguments do not match the schema of {schema.job_type}@{schema.version}."
            code = "validation_error" if named is None else "schema_validation"
            raise RequestRefused(code, text, details={"validation_errors": errors, "field": "args"})
        return [f"Schema validation warning: {one}" for one in errors]

    def _schema_for(self, job_type: str, version: object) -> Schema | None:
        if isinstance(version, str):
            return self.versions.get(name_of(job_type, version)) or self.versions.get(name_of(job_type, f"{version}.0"))
        return next(iter(self.of_type(job_type)), None)

    def _validate(self, schema: Schema, args: object) -> list[str]:
        is_single = schema.schema.get("type") == "object" and isinstance(args, list) and len(args) == 1
        return self._compile(schema).validate(args[0] if is_single else args)  # type: ignore[index]

    def _compile(self, schema: Schema) -> Compiled:
        """Return a compiled schema; the oldest ones are dropped when they take too much memory."""
        key = msgspec.json.encode(schema.schema)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = compile_schema(schema.schema)
            self._compiled_bytes += compiled.memory_bytes
            while self._compiled_bytes > COMPILED_BYTES:
                oldest = next(iter(self._compiled))
                self._compiled_bytes -= self._compiled.pop(oldest).memory_bytes
        return compiled


def compile_schema(schema: Form) -> Compiled:
    """Return a validator for a schema. Raises RequestRefused if it is invalid."""
    try:
        import jsonschema_rs  # noqa: PLC0415 - only needed with schemas
    except ImportError:
        raise RequestRefused("unsupported", "Schemas need the package jsonschema-rs on the server.") from None
    if len(msgspec.json.encode(schema)) > MAX_SCHEMA_BYTES:
        raise RequestRefused("payload_too_large", f"schema: {MAX_SCHEMA_BYTES} bytes are allowed.")
    failures = (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError)

    def validator_of(schema: Form, pattern_bytes: int, state_bytes: int) -> Any:  # noqa: ANN401 - imported late
        options = jsonschema_rs.RegexOptions(size_limit=pattern_bytes, dfa_size_limit=state_bytes)
        return jsonschema_rs.Draft202012Validator(schema, retriever=_retrieve, pattern_options=options)

    def fits(pattern: str, pattern_bytes: int) -> bool:
        try:
            validator_of({"pattern": pattern}, pattern_bytes, STATE_BYTES)
        except failures:
            return False
        return True

    try:
        cost = cost_of(schema, fits)
        validator = validator_of(schema, MAX_PATTERN_BYTES, cost.state_bytes)
    except SchemaRefused as refused:
        raise _no_schema(str(refused)) from None
    except failures as error:
        raise _no_schema(str(error).splitlines()[0][:MESSAGE_LENGTH]) from None

    def validate(value: object) -> list[str]:
        steps = cost.steps(msgspec.json.encode(value))
        if steps > MAX_STEPS:
            raise RequestRefused(
                "payload_too_large", "args: have too many values, or are too long, for such a large schema."
            )
        if validator.is_valid(value):
            return []
        if steps <= MAX_LISTED_STEPS:
            return [_message(error) for error in islice(validator.iter_errors(value), MAX_ERRORS)]
        # An error contains those of all parts, and the iterator creates all errors before it yields one.
        try:
            validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return [_message(error)]
        return []

    return Compiled(validate, cost.memory_bytes)


def _message(error: Any) -> str:  # noqa: ANN401 - the library is imported late
    place = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in error.instance_path)
    return f"args{place}: {error.message[:MESSAGE_LENGTH]}"


def _retrieve(uri: str) -> Any:  # noqa: ANN401 - the library's protocol
    raise ValueError(f"{uri[:MESSAGE_LENGTH]} is not fetched")


def _no_schema(why: str) -> RequestRefused:
    error = invalid("schema", f"is not a JSON Schema: {why}")
    error.details["schema_error"] = why
    return error


def name_of(job_type: str, version: str) -> str:
    """Return the name of a version of a schema."""
    return f"{job_type}@{version}"


def order_of(version: str) -> tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]:
    """Return the sort key of a version (SemVer 2.0.0 section 11). Raises RequestRefused if it is invalid."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise invalid("version", "must be a version such as 2.0 or 1.4.2")
    major, minor, patch, before = found.groups()
    parts = tuple((not one.isdigit(), int(one) if one.isdigit() else 0, one) for one in (before or "").split("."))
    return int(major), int(minor), int(patch or 0), before is None, parts


def breaking_changes(before: Form, after: Form, place: str = "") -> list[str]:
    """Return the breaking changes between two schemas (section 8.2), as far as they can be detected."""
    found: list[str] = []
    if "type" in before and "type" in after and before["type"] != after["type"]:
        found.append(f"{place or 'the arguments'}: the type was {before['type']} and is {after['type']}")
    required, required_before = _names(after, "required"), _names(before, "required")
    found += [f"Required field {place}{name!r} was added" for name in sorted(required - required_before)]
    properties, properties_before = _object(after, "properties"), _object(before, "properties")
    found += [f"Field {place}{name!r} was removed" for name in sorted(set(properties_before) - set(properties))]
    if after.get("additionalProperties") is False and before.get("additionalProperties", True) is not False:
        found.append(f"{place or 'the arguments'}: additionalProperties changed to false")
    for name, direction in _NARROWING.items():
        old, new = before.get(name), after.get(name)
        if isinstance(new, int | float) and (
            old is None or (isinstance(old, int | float) and (new - old) * direction < 0)
        ):
            found.append(f"{place or 'the arguments'}: {name} was narrowed to {new}")
    for name in sorted(set(properties) & set(properties_before)):
        old_one, new_one = properties_before[name], properties[name]
        if isinstance(old_one, dict) and isinstance(new_one, dict):
            found += breaking_changes(old_one, new_one, f"{place}{name}.")
    return found[:MAX_ERRORS]


def _names(schema: Form, name: str) -> set[str]:
    value = schema.get(name)
    return {one for one in value if isinstance(one, str)} if isinstance(value, list) else set()


def _object(schema: Form, name: str) -> Form:
    value = schema.get(name)
    return value if isinstance(value, dict) else {}
