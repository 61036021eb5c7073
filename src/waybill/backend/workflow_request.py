"""Makes the definition of a workflow from a request (ojs-workflows, ojs-http-binding section 14).

{"type": "chain", "steps": [job, ...]}                                  jobs, or nested workflows
{"type": "group" | "batch", "jobs": [job, ...], "callbacks": {"on_success": job}}
{"name": "...", "steps": [{"id": ..., "depends_on": [...], job}]}       a graph, without a type
{"type": "saga", "failure_policy": "compensate", "steps": [{"name": ..., "job_type": ..., "compensate_type": ...}]}
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.backend.enqueue import envelope_of
from waybill.backend.errors import RequestRefused
from waybill.backend.options import Json
from waybill.ojs.errors import InvalidJob
from waybill.ojs.handler import MadeJob
from waybill.ojs.spec.envelope import SYSTEM_MANAGED
from waybill.ojs.spec.timestamps import parse_timestamp
from waybill.ojs.workflow.definition import (
    CALLBACKS,
    COMPENSATION,
    MAX_DEPTH,
    MAX_NODES,
    Definition,
    FailurePolicy,
    NodeKind,
    check_definition,
)
from waybill.ojs.workflow.shapes import DELAY

KINDS: Final[dict[str, NodeKind]] = {
    "chain": "chain",
    "group": "group",
    "batch": "batch",
    "dag": "dag",
    "": "dag",
    "saga": "saga",
}
POLICIES: Final[dict[str, FailurePolicy]] = {"compensate": "compensate", "retry": "retry", "skip": "skip"}
_OF_SAGAS: Final = frozenset({"name", "id", "type", "job_type", "args", "compensate_type", "compensate_args"})
"""Fields of a step of a saga that are its own, not those of its jobs."""
_OF_STEPS: Final = frozenset({"id", "name", "depends_on", "pending", "delay_until"})
"""Fields of a step, and fields that a step cannot have."""

BATCH: Final = 100
"""Jobs to make before other requests are served."""

Make = Callable[[Json], MadeJob]


async def definition_of(body: Json, make: Make) -> Definition:
    """Return the definition of a workflow; `make` checks a job. Raises RequestRefused.

    Other requests are served in between, because there may be ten thousand jobs.
    """
    try:
        definition = await _composite(body, make, "", {}, 1)
        if not definition.name:
            definition.name = definition.type
        check_definition(definition)
    except InvalidJob as error:
        raise _refused(error.field, error.message) from error
    return definition


async def _composite(body: Mapping[str, object], make: Make, path: str, defaults: Json, depth: int) -> Definition:
    if depth > MAX_DEPTH:
        raise _refused(path, f"is nested deeper than {MAX_DEPTH} levels")
    kind = _kind(body, path)
    options = body.get("options")
    if options is not None and not isinstance(options, dict):
        raise _refused(f"{path}options", "must be an object")
    defaults = defaults | (options or {})
    parts, field = _parts(body, kind, path)
    if kind == "saga":
        return await _saga(body, parts, make, path, defaults)
    steps = []
    for index, part in enumerate(parts):
        if index % BATCH == BATCH - 1:
            await asyncio.sleep(0)
        steps.append(await _part(part, make, f"{path}{field}[{index}]", defaults, depth))
    is_graph = kind == "dag" or (kind != "chain" and any(step.depends_on for step in steps))
    callbacks = _callbacks(body, make, path, defaults)
    if kind == "batch" and not callbacks:
        raise _refused(f"{path}callbacks", f"must have at least one of {', '.join(CALLBACKS)}")
    name = body.get("name")
    if name is not None and not isinstance(name, str):
        raise _refused(f"{path}name", "must be a string")
    if not is_graph:
        for step in steps:
            step.depends_on = []
        return Definition(kind, name or "", steps=steps, callbacks=callbacks)
    graph = Definition("dag", name or "", steps=steps)
    return Definition("batch", name or "", steps=[graph], callbacks=callbacks) if callbacks else graph


async def _saga(body: Mapping[str, object], parts: list[object], make: Make, path: str, defaults: Json) -> Definition:
    """Return a saga (ojs-workflows section 14)."""
    policy, name = body.get("failure_policy", "compensate"), body.get("name") or ""
    if not isinstance(policy, str) or policy not in POLICIES:
        raise _refused(f"{path}failure_policy", f"must be one of {', '.join(POLICIES)}")
    if not isinstance(name, str):
        raise _refused(f"{path}name", "must be a string")
    saga = Definition("saga", name, failure_policy=POLICIES[policy])
    for index, part in enumerate(parts):
        if index % BATCH == BATCH - 1:
            await asyncio.sleep(0)
        place = f"{path}steps[{index}]"
        if not isinstance(part, dict):
            raise _refused(place, "must be an object")
        named = part.get("name", part.get("id"))
        if not isinstance(named, str) or not named:
            raise _refused(f"{place}.name", "must be a string")
        common = {key: value for key, value in part.items() if key not in _OF_SAGAS}
        kind = part.get("job_type", part.get("type"))
        # With the policy `compensate`, steps are undone immediately, unless a step has its own retry policy.
        once: Json = {"retry": {"max_attempts": 1}} if policy == "compensate" else {}
        step = {**common, "type": kind, "args": part.get("args", [])}
        saga.steps.append(Definition("job", named, job=_job(step, make, place, once | defaults)))
        undo = part.get("compensate_type")
        if undo is not None:
            options = common.get("options")
            if isinstance(options, dict):
                common["options"] = {key: value for key, value in options.items() if key != "retry"}
            common.pop("retry", None)
            undoing = {**common, "type": undo, "args": part.get("compensate_args", [])}
            saga.callbacks[f"{COMPENSATION}{named}"] = Definition("job", job=_job(undoing, make, place, defaults))
        elif "compensate_args" in part:
            raise _refused(f"{place}.compensate_type", "is missing")
    return saga


def _kind(body: Mapping[str, object], path: str) -> NodeKind:
    # ojs-ml-extensions and ojs-ml-resources, section 12, name it like the events do.
    given = body.get("type", body.get("workflow_type", ""))
    kind = KINDS.get(given) if isinstance(given, str) else None
    if kind is None:
        raise _refused(f"{path}type", "must be chain, group, batch or saga")
    return kind


def _parts(body: Mapping[str, object], kind: NodeKind, path: str) -> tuple[list[object], str]:
    names = ("jobs", "steps") if kind in {"group", "batch"} else ("steps", "jobs")
    field = next((name for name in names if body.get(name) is not None), names[0])
    parts = body.get(field)
    if not isinstance(parts, list) or not parts:
        raise _refused(f"{path}{field}", "must be an array with at least one job")
    if len(parts) > MAX_NODES:
        raise _refused(f"{path}{field}", f"must have at most {MAX_NODES} jobs")
    return parts, field


async def _part(part: object, make: Make, path: str, defaults: Json, depth: int) -> Definition:
    if not isinstance(part, dict):
        raise _refused(path, "must be an object")
    kind = part.get("type")
    if isinstance(kind, str) and kind in KINDS and ("steps" in part or "jobs" in part):
        made = await _composite(part, make, f"{path}.", defaults, depth + 1)
    else:
        made = Definition("job", job=_job(part, make, path, defaults))
    name = part.get("id", part.get("name"))
    if name is not None and not isinstance(name, str):
        raise _refused(f"{path}.id", "must be a string")
    made.name = name or ""
    needed = part.get("depends_on")
    if needed is not None and not (isinstance(needed, list) and all(isinstance(one, str) for one in needed)):
        raise _refused(f"{path}.depends_on", "must be an array of the ids of steps")
    made.depends_on = needed or []
    return made


def _callbacks(body: Mapping[str, object], make: Make, path: str, defaults: Json) -> dict[str, Definition]:
    given = body.get("callbacks")
    if given is not None and not isinstance(given, dict):
        raise _refused(f"{path}callbacks", "must be an object")
    given = given or {name: body[name] for name in CALLBACKS if body.get(name) is not None}
    found = {}
    for name, job in given.items():
        field = f"{path}callbacks.{name}"
        if name not in CALLBACKS:
            raise _refused(field, f"is not one of {', '.join(CALLBACKS)}")
        if job is None:
            continue
        if not isinstance(job, dict):
            raise _refused(field, "must be an object")
        found[name] = Definition("job", job=_job({"args": [], **job}, make, field, defaults))
    return found


def _job(part: Json, make: Make, path: str, defaults: Json) -> Json:
    """Return the envelope of a step without its id and its times."""
    options = part.get("options")
    if options is not None and not isinstance(options, dict):
        raise _refused(f"{path}.options", "must be an object")
    own = {name: value for name, value in part.items() if name not in _OF_STEPS}
    if part.get("pending") or (options or {}).get("pending"):
        raise _refused(f"{path}.pending", "cannot be given for a step of a workflow")
    own["options"] = {name: value for name, value in defaults.items() if name not in part} | (options or {})
    try:
        given = envelope_of(own)
        made = make(given).envelope
    except RequestRefused as error:
        error.message = f"{path}: {error.message}"
        field = f"{path}.{error.details.get('field', '')}"
        error.details |= {"field": field, "validation_errors": [{"path": f"$.{field}", "message": error.message}]}
        raise
    except InvalidJob as error:
        if error.code == "INVALID_RETRY_POLICY":
            raise
        raise _refused(f"{path}.{error.field}", error.message) from error
    job: Json = msgspec.json.decode(made.encode())
    for field in (*SYSTEM_MANAGED, "id"):
        job.pop(field, None)
    asked = given.get("scheduled_at", given.get("delay_until"))
    if isinstance(asked, str) and asked.startswith("+") and made.scheduled_at is not None:
        # The delay starts when the step is enqueued.
        wait = parse_timestamp(made.scheduled_at, "scheduled_at") - datetime.now(UTC)
        job.pop("scheduled_at", None)
        job[DELAY] = max(0, round(wait / timedelta(milliseconds=1)))
    return job


def _refused(field: str, what: str) -> RequestRefused:
    place = field.removeprefix("workflow.") or "workflow"
    details: Json = {"field": place, "validation_errors": [{"path": f"$.{place}", "message": what}]}
    return RequestRefused("invalid_request", f"{place}: {what}.", details=details)
