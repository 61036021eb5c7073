"""Writes the handlers and cron jobs for the tasks and the beat schedule of a Celery app."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any, Final

from waybill.ojs.celery.message import job_type_of

BUILTINS: Final = (str, int, float, bool, bytes, list, dict, tuple, set)
LITERALS: Final = (str, int, float, bool, bytes, type(None))

_HEAD: Final = '''"""Handlers of the tasks of {target}, written by `waybill migrate celery`: read each TODO."""

from datetime import timedelta

from waybill import Jobs, Retry

jobs = Jobs({uri})'''


def find_app(target: str) -> Any:  # noqa: ANN401 - celery.Celery, which has no types
    """Import `module:name`; for a module alone, its `app`, `celery` or only Celery object. Raises TypeError."""
    from celery import Celery  # noqa: PLC0415 - only who migrates has it

    module_name, _, name = target.partition(":")
    module = import_module(module_name)
    if name:
        found = getattr(module, name)
    else:
        apps = {key: value for key, value in vars(module).items() if isinstance(value, Celery)}
        found = apps.get("app") or apps.get("celery") or (next(iter(apps.values())) if len(apps) == 1 else None)
    if not isinstance(found, Celery):
        raise TypeError(f"{target} is not a Celery app: use MODULE:NAME")
    found.loader.import_default_modules()
    found.finalize()
    return found


def write_handlers(app: Any, target: str, uri: str | None) -> str:  # noqa: ANN401 - see `find_app`
    """Return the source of a module with a handler for each task of an app, and a cron job for each schedule entry."""
    tasks = {name: task for name, task in sorted(app.tasks.items()) if not name.startswith("celery.")}
    schedule = dict(app.conf.beat_schedule or {})
    by_task: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for name, entry in schedule.items():
        by_task.setdefault(str(entry.get("task")), []).append((name, entry))
    names = _function_names(tasks)
    parts = [_HEAD.format(target=target, uri="" if uri is None else repr(uri))]
    for name, task in tasks.items():
        parts.append("\n".join(_handler(app, name, task, names[name], by_task.pop(name, []))))
    for entries in by_task.values():
        for name, entry in entries:
            parts.append(f"# TODO: the task {entry.get('task')!r} of {name!r} in the beat schedule is not registered.")
    return "\n\n".join(parts) + "\n"


def _function_names(tasks: Mapping[str, Any]) -> dict[str, str]:
    """Return a name for each task's function: its last part, or the whole name if two would be the same."""
    short = {name: job_type_of(name).rpartition(".")[2].replace("-", "_") for name in tasks}
    taken = list(short.values())
    return {name: _identifier(one if taken.count(one) == 1 else job_type_of(name)) for name, one in short.items()}


def _identifier(name: str) -> str:
    name = name.replace(".", "_").replace("-", "_")
    return name if name.isidentifier() and name not in {"jobs", "Jobs", "Retry", "timedelta"} else f"task_{name}"


def _handler(
    app: Any,  # noqa: ANN401 - see `find_app`
    name: str,
    task: Any,  # noqa: ANN401 - a task of Celery
    function: str,
    crons: list[tuple[str, Mapping[str, Any]]],
) -> Iterator[str]:
    parameters, call = _parameters(task)
    yield ""
    for cron_name, entry in crons:
        yield from _cron(app, cron_name, entry)
    yield f"@jobs.handler({', '.join([repr(job_type_of(name)), *_options(app, name, task)])})"
    yield f"def {function}({parameters}) -> object:"
    if task.max_retries is None:
        yield "    # TODO: Celery retries this forever; here it becomes a dead letter after 100 attempts."
    if _is_bound(task):
        yield "    # TODO: the task is bound: instead of self.retry(...), raise PostponeJob(seconds) or an error."
    if task.rate_limit:
        yield f"    # TODO: rate_limit {task.rate_limit!r}: use the middleware RateLimit."
    module, attribute = task.run.__module__, getattr(task, "__name__", function)
    yield f"    from {module} import {attribute} as task"
    yield ""
    # Without the wrapper of autoretry_for, which would send the message to Celery again.
    run = "_orig_run" if hasattr(task, "_orig_run") else "run"
    yield f"    return task.{run}({call})"


def _is_bound(task: Any) -> bool:  # noqa: ANN401 - a task of Celery
    return inspect.ismethod(getattr(task, "_orig_run", task.run))


def _parameters(task: Any) -> tuple[str, str]:  # noqa: ANN401 - see `_is_bound`
    """Return the parameters of a task as source, and the arguments that pass them on."""
    written, call = [], []
    named = False
    for one in inspect.signature(task.run).parameters.values():
        if one.kind is one.VAR_POSITIONAL:
            written.append(f"*{one.name}")
            call.append(f"*{one.name}")
            named = True
            continue
        if one.kind is one.VAR_KEYWORD:
            written.append(f"**{one.name}")
            call.append(f"**{one.name}")
            continue
        if one.kind is one.KEYWORD_ONLY and not named:
            written.append("*")
            named = True
        annotation = f": {one.annotation.__name__}" if one.annotation in BUILTINS else ""
        space = " " if annotation else ""
        default = ""
        if one.default is not one.empty:
            text = repr(one.default) if type(one.default) in LITERALS else "None"
            if text == "None" and annotation:
                annotation += " | None"
            default = f"{space}={space}{text}"
        written.append(f"{one.name}{annotation}{default}")
        call.append(f"{one.name}={one.name}" if one.kind is one.KEYWORD_ONLY else one.name)
    return ", ".join(written), ", ".join(call)


def _options(app: Any, name: str, task: Any) -> Iterator[str]:  # noqa: ANN401 - see `_is_bound`
    route = app.amqp.router.route({}, name, (), {}, task)
    yield f"queue={_queue(app, task, route)!r}"
    attempts = 100 if task.max_retries is None else task.max_retries + 1
    retries = bool(getattr(task, "autoretry_for", ())) or _is_bound(task)
    policy = [f"max_attempts={attempts if retries else 1}"]
    if retries:
        backoff = getattr(task, "retry_backoff", False)
        first = int(backoff) if backoff else task.default_retry_delay
        policy.append(f"initial_interval=timedelta(seconds={max(1, first)})")
        policy.append(f"max_interval=timedelta(seconds={max(first, getattr(task, 'retry_backoff_max', 600))})")
        if not backoff:
            policy.append('backoff_strategy="none"')
        if not getattr(task, "retry_jitter", True):
            policy.append("jitter=False")
    yield f"retry=Retry({', '.join(policy)})"
    limit = task.time_limit or app.conf.task_time_limit
    if limit:
        yield f"timeout={float(limit):g}"
    priority = route.get("priority") or vars(type(task)).get("priority")
    if priority:
        yield f"priority={min(100, round(priority * 100 / 9))}"


def _queue(app: Any, task: Any, route: Mapping[str, Any]) -> str:  # noqa: ANN401 - see `_is_bound`
    found = getattr(task, "queue", None) or route.get("queue") or app.conf.task_default_queue
    return job_type_of(str(getattr(found, "name", found))).replace("_", "-")


def _cron(app: Any, name: str, entry: Mapping[str, Any]) -> Iterator[str]:  # noqa: ANN401 - see `_is_bound`
    schedule = entry.get("schedule")
    cron_name = job_type_of(name.replace(" ", "-")).replace("_", "-")
    more = [f"name={cron_name!r}"]
    if entry.get("args"):
        more.append(f"args={list(entry['args'])!r}")
    if entry.get("kwargs"):
        yield f"# TODO: {name!r} has kwargs {entry['kwargs']!r}: pass them as args, in the order of its parameters."
    if entry.get("options"):
        yield f"# TODO: {name!r} has options {entry['options']!r}."
    if hasattr(schedule, "_orig_minute"):
        fields = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
        expression = " ".join(str(getattr(schedule, f"_orig_{field}")).replace(" ", "") for field in fields)
        yield f"@jobs.cron({expression!r}, tz={str(app.conf.timezone or 'UTC')!r}, {', '.join(more)})"
        return
    if isinstance(schedule, (int, float)):
        schedule = timedelta(seconds=schedule)
    seconds = getattr(getattr(schedule, "run_every", schedule), "total_seconds", lambda: None)()
    if seconds is None:
        yield f"# TODO: the schedule of {name!r} is {schedule!r}: Waybill has no such schedule."
    else:
        yield f"@jobs.cron(every=timedelta(seconds={seconds:g}), {', '.join(more)})"
