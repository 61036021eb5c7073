"""The results of the steps before a job, with the types of their handlers (ojs-workflows section 7).

@jobs.handler("payment.charge")
async def charge() -> str:
order = parent_result(validate)     # Order, as `validate` returns it
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from waybill.ojs.errors import FailJob
from waybill.ojs.handler import Handler
from waybill.ojs.job_context import current_job

R = TypeVar("R")


class StepFailed(FailJob):
    """A job whose result is needed has failed, or its result is not stored with the workflow."""


def parent_result(handler: Handler[..., R], step: str | None = None) -> R:
    """Return the result of the previous step, or of the one with the name or index `step`: a job of `handler`.

    Raises LookupError if there is none, or several and no `step`; StepFailed if that job has failed or its result has
    another type.
    """
    return _typed(handler, _find(step))


def parent_results(handler: Handler[..., R], step: str | None = None) -> list[R]:
    """Return the results of the previous group, jobs of `handler`, or in a callback those of its batch; in order.

    With `step`, those of the group with this name or index. Raises LookupError if there is none, StepFailed if one of
    the jobs has failed: `parent_outcomes` returns all.
    """
    return [_typed(handler, value) for value in _many(step)]


def parent_outcomes(handler: Handler[..., R], step: str | None = None) -> list[R | StepFailed]:
    """Return results like `parent_results`, with an error in place of the result of each failed job."""
    outcomes: list[R | StepFailed] = []
    for value in _many(step):
        try:
            outcomes.append(_typed(handler, value))
        except StepFailed as error:
            outcomes.append(error)
    return outcomes


def _find(step: str | None) -> Any:  # noqa: ANN401 - a JSON value
    found = current_job().parent_results
    if step is not None:
        if step not in found:
            raise LookupError(f"there is no result of a step {step!r} before this job")
        return found[step]
    if not found:
        raise LookupError("there is no step before this job")
    if all(key.isdecimal() for key in found):
        # In a chain, the previous step is the last one.
        return found[max(found, key=int)]
    if len(found) > 1:
        raise LookupError(f"this job depends on several steps; name one of them: {', '.join(found)}")
    return next(iter(found.values()))


def _many(step: str | None) -> list[Any]:
    job = current_job()
    found = job.parent_results if step is None and job.is_callback else _find(step)
    if not isinstance(found, dict):
        raise LookupError("the step before this job is not a group")  # noqa: TRY004 - it is of another kind than asked for
    if "result_ref" in found:
        text = "the results of the group are too large to come with the job: read them with WorkflowHandle.results"
        raise StepFailed(f"{text}, {found['result_ref']}")
    return [found[key] for key in sorted(found, key=lambda key: int(key) if key.isdecimal() else 0)]


def _typed(handler: Handler[..., R], value: Any) -> R:  # noqa: ANN401 - a JSON value
    if isinstance(value, dict) and "error" in value and value.keys() == {"error"}:
        error = value["error"]
        raise StepFailed(f"an earlier job failed: {error.get('message')} ({error.get('code')})")
    if isinstance(value, dict) and "result_ref" in value:
        raise StepFailed(f"the result is only stored with its job: {value['result_ref']}")
    try:
        typed: R = handler.result.decode(msgspec.json.encode(value))  # type: ignore[assignment] # by its annotation
    except ValueError as error:
        raise StepFailed(f"the result of the previous job does not fit {handler.type}: {error}") from error
    return typed
