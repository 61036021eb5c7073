"""How far a workflow is (ojs-progress section 9): the progress of its steps, and of the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from waybill.backend.job_form import Form
from waybill.ojs.spec.control_message import JobInfo

MOST_REPORTED: Final = 1000
"""The maximum number of steps whose reports are read; further ones count when they have ended."""
_COMPLETED: Final = "completed"


def reporting_ids(workflow: Form) -> list[str]:
    """Return the ids of jobs that may have reported progress: those of steps that have begun."""
    found = (str(step["job_id"]) for step in _leaves(workflow) if step.get("job_id") and step["state"] != _COMPLETED)
    return [job_id for job_id, _ in zip(found, range(MOST_REPORTED), strict=False)]


def progress_of(workflow: Form, jobs: Mapping[str, JobInfo]) -> Form:
    """Return the progress of a workflow, given its form and the jobs that may have reported progress."""
    steps = [_step(one, jobs) for one in _steps(workflow)]
    is_done = workflow["state"] == _COMPLETED
    return {
        "workflow_id": workflow["id"],
        "type": workflow["type"],
        "state": workflow["state"],
        "progress": 1.0 if is_done else _total(steps, in_part=workflow["type"] != "batch"),
        "steps": steps,
    }


def _step(step: Form, jobs: Mapping[str, JobInfo]) -> Form:
    form = {name: step.get(name) for name in ("id", "job_id", "type")}
    form["state"] = "pending" if step["state"] == "waiting" else step["state"]
    inner = [_step(one, jobs) for one in _steps(step)]
    job = jobs.get(str(step.get("job_id")))
    if step["state"] == _COMPLETED:
        form["progress"] = 1.0
    elif inner:
        form["progress"] = _total(inner)
    else:
        form["progress"] = None if job is None else job.progress
    if inner:
        form["steps"] = inner
    if job is not None and job.progress_data is not None:
        form["data"] = job.progress_data
    return form


def _total(steps: list[Form], *, in_part: bool = True) -> float:
    """Return the average of steps; without `in_part`, a step counts when it is completed."""
    counted = [one["progress"] for one in steps if in_part or one["state"] == _COMPLETED]
    return round(sum(one for one in counted if isinstance(one, float)) / max(len(steps), 1), 4)


def _steps(form: Form) -> list[Form]:
    found = form.get("steps")
    return found if isinstance(found, list) else []


def _leaves(form: Form) -> Iterator[Form]:
    for step in _steps(form):
        if _steps(step):
            yield from _leaves(step)
        else:
            yield step
