"""The forms of cron jobs in requests and responses (ojs-cron section 2, ojs-http-binding section 13).

Some clients use `cron`, `type`, `args` and `options`, others `expression` and `job_template`. Requests may use either
form. Responses contain both.
"""

from __future__ import annotations

from typing import Final

import msgspec

from waybill.backend.enqueue import envelope_of
from waybill.backend.errors import invalid
from waybill.backend.job_form import Form
from waybill.ojs.cron.definition import OPTIONS, CronFiring, CronInfo, CronJob, read_cron_job

_TEMPLATE: Final = (
    "type",
    "args",
    "meta",
    "options",
    "queue",
    "priority",
    "retry",
    "timeout",
    "timeout_ms",
    "tags",
    "version",
    "unique",
)
_OWN: Final = ("name", "overlap_policy", "missed_policy", "enabled", "description", "jitter")
_POLICIES: Final = {"cancel": "cancel_previous"}
_EXPRESSIONS: Final = ("expression", "cron", "schedule")


def cron_job_of(body: Form) -> CronJob:
    """Make a cron job from a request, flat or with a job template. Raises RequestRefused."""
    given = body.get("job_template", body.get("job"))
    template: Form = {name: body[name] for name in _TEMPLATE if name in body}
    if given is not None and not isinstance(given, dict):
        raise invalid("job_template", "must be an object")
    template |= given or {}
    template.setdefault("args", [])
    job = envelope_of(template)
    options = {name: value for name, value in job.items() if name in OPTIONS - {"meta"}}
    expression = next((body[name] for name in _EXPRESSIONS if body.get(name) is not None), None)
    made: Form = {
        "cron": expression,
        "type": job["type"],
        "args": job["args"],
        "meta": job.get("meta", {}),
        "options": options,
    }
    made |= {name: body[name] for name in _OWN if body.get(name) is not None}
    policy = made.get("overlap_policy")
    if isinstance(policy, str):
        made["overlap_policy"] = _POLICIES.get(policy, policy)
    made["timezone"] = body.get("timezone") or "UTC"
    return read_cron_job(made)


def changed(info: CronInfo, changes: Form) -> CronJob:
    """Return a cron job with some fields changed. Raises RequestRefused, InvalidJob."""
    before: Form = {
        "name": info.name,
        "expression": info.cron,
        "timezone": info.timezone,
        "overlap_policy": info.overlap_policy,
        "missed_policy": info.missed_policy,
        "jitter": info.jitter,
        "description": info.description,
        "job_template": {"type": info.type, "args": info.args, "meta": info.meta, "options": info.options},
    }
    if any(name in changes for name in _EXPRESSIONS):
        del before["expression"]
    template = changes.get("job_template", {})
    own = {name: changes[name] for name in _TEMPLATE if name in changes}
    if not isinstance(template, dict):
        raise invalid("job_template", "must be an object")
    merged: Form = {**before, **changes, "name": info.name}
    merged["job_template"] = {**before["job_template"], **own, **template}  # type: ignore[dict-item]
    return cron_job_of(merged)


def form_of_cron(info: CronInfo) -> Form:
    """Return a cron job for a response."""
    form: Form = {name: value for name, value in msgspec.to_builtins(info).items() if value is not None}
    is_enabled = info.enabled is not False and info.status == "active"
    form["expression"] = form["schedule"] = info.cron
    form["enabled"] = is_enabled
    form["queue"] = info.queue
    form["options"] = options = {**info.options, "meta": info.meta} if info.meta else info.options
    form["job_template"] = {"type": info.type, "args": info.args, "meta": info.meta, "options": options}
    # The specification requires these even if they are empty.
    form["last_run_at"] = info.last_run_at
    form["next_run_at"] = info.next_run_at if is_enabled else None
    return form


def form_of_firing(firing: CronFiring) -> Form:
    """Return a run of a cron job for a response."""
    form: Form = {name: value for name, value in msgspec.to_builtins(firing).items() if value is not None}
    form["triggered_at"] = firing.at
    return form
