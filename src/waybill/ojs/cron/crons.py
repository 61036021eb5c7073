"""Cron jobs for applications: declare them at handlers, register and query them at coordinators.

    @jobs.cron("0 9 * * MON-FRI", tz="Europe/Berlin", overlap="skip")
    @jobs.handler("report.daily", queue="reports")
    async def daily_report() -> None: ...

Every worker registers the declared cron jobs when it starts; so does `jobs.crons.sync()`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypedDict, TypeVar, overload

import msgspec

from waybill.client import ClientError
from waybill.ojs.control.control import Control
from waybill.ojs.cron.cron_message import CRON_REQUEST, CronReply, CronRequest
from waybill.ojs.cron.definition import OPTIONS, CronInfo, CronJob, MissedPolicy, OverlapPolicy
from waybill.ojs.cron.schedule import write_every
from waybill.ojs.errors import ControlFailed, CronNotFound, InvalidJob
from waybill.ojs.handler import AnyHandler, AsyncHandler, Handler, PlainHandler, Registration
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.retry import Retry
from waybill.ojs.spec.unique import Unique

if TYPE_CHECKING:
    from collections.abc import Coroutine

TIMEOUT_SECONDS: Final = 10.0
PAUSES_SECONDS: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
NEXT_RUNS: Final = 5

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=Handler[..., Any])

_log = logging.getLogger("waybill.ojs.cron")


class CronSettings(TypedDict, total=False):
    """Options of a cron job besides its schedule.

    `name` defaults to a name derived from the job type. `job_type` is for a function that is not a handler yet; its
    default is the name of the function. `args` are the arguments of each job; `queue`, `priority`, `timeout`,
    `retry`, `unique`, `tags` and `meta` are its options, by default those of the handler. `overlap` decides what
    happens at a tick while the previous job is still running: "skip" it, "allow" both, "cancel_previous", or
    "enqueue" it to run afterwards. `missed` decides what happens to ticks that were missed because no coordinator was
    running: run the last one ("once"), "all", or "skip" them. `jitter` delays each tick by up to this many seconds,
    always the same for one tick. `enabled` defaults to what was set manually.
    """

    name: str
    job_type: str
    args: Sequence[object]
    queue: str
    priority: int
    timeout: float
    retry: Retry
    unique: Unique
    tags: list[str]
    meta: dict[str, object]
    overlap: OverlapPolicy
    missed: MissedPolicy
    jitter: float | timedelta
    enabled: bool
    description: str


class CronRegistration(Protocol):
    """The decorator that `Jobs.cron` returns: for a handler, or for a function that becomes one."""

    @overload
    def __call__(self, handler: H, /) -> H: ...  # type: ignore[overload-overlap] # a handler can be called, too
    @overload
    def __call__(  # type: ignore[overload-overlap] # see `handler.Registration`
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> AsyncHandler[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> PlainHandler[P, T]: ...
    def __call__(self, function: Callable[P, Any], /) -> Any:
        """Declare the cron job."""
        ...


class Application(Protocol):
    """An object with cron jobs: `Jobs`, for example."""

    cron_jobs: dict[str, CronJob]
    handlers: dict[str, AnyHandler]

    @property
    def handler(self) -> Callable[..., Registration]:
        """The decorator that makes handlers."""
        ...

    async def control(self) -> Control:
        """Return the client for requests to coordinators."""
        ...


class Crons:
    """The cron jobs of an application: `jobs.crons`. Iterating yields those declared in this program."""

    def __init__(self, jobs: Application) -> None:
        self._jobs = jobs

    def __iter__(self) -> Iterator[CronJob]:
        return iter(list(self._jobs.cron_jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs.cron_jobs)

    def declare(self, cron: str | None, tz: str, every: timedelta | None, settings: CronSettings) -> CronRegistration:
        """See `Jobs.cron`."""
        if (cron is None) == (every is None):
            raise ValueError("give a cron job either an expression or `every`")
        if every is not None and not isinstance(every, timedelta):
            raise TypeError("`every` must be a timedelta, such as timedelta(minutes=5)")
        unknown = sorted(settings.keys() - CronSettings.__annotations__.keys())
        if unknown:
            # A misspelt option, of a time zone for example, would be ignored.
            known = ", ".join(["cron", "tz", "every", *CronSettings.__annotations__])
            raise TypeError(f"{unknown[0]!r} is not an option of a cron job; it has {known}")
        expression = cron if every is None else write_every(every)

        def register(function: Callable[..., Any]) -> Any:  # noqa: ANN401 - see `CronRegistration`
            handler = function if isinstance(function, Handler) else self._handler_of(function, settings)
            job = _cron_job(handler, expression or "", tz, settings, self._free_name(handler, settings))
            job.check()
            if job.name in self._jobs.cron_jobs:
                raise ValueError(f"a cron job {job.name} already exists")
            self._jobs.cron_jobs[job.name] = job
            return handler

        return register

    async def sync(self, *, prune: bool = False) -> dict[str, str]:
        """Register the cron jobs declared here; returns for each name: created, updated or unchanged.

        `prune` removes other cron jobs of job types with a handler here. Raises
        InvalidJob, or ControlFailed if no coordinator answers.
        """
        control = await self._jobs.control()
        outcomes = {job.name: await register(control, job) for job in self}
        if prune:
            for info in await self.list():
                if info.name not in outcomes and info.type in self._jobs.handlers:
                    await self.remove(info.name)
                    outcomes[info.name] = "removed"
        return outcomes

    async def register(self, job: CronJob) -> str:
        """Register one cron job; returns created, updated or unchanged."""
        return await register(await self._jobs.control(), job)

    async def list(self) -> list[CronInfo]:
        """Return all cron jobs, sorted by name, without their firings."""
        return (await self._ask(CronRequest("list"))).cron_jobs

    async def get(self, name: str, *, next_runs: int = NEXT_RUNS) -> CronInfo:
        """Return a cron job with its last firings and its next runs. Raises CronNotFound."""
        return (await self._ask(CronRequest("get", name, count=next_runs))).cron_jobs[0]

    async def pause(self, name: str, *, by: str | None = None) -> CronInfo:
        """Pause a cron job until it is resumed; its ticks are skipped meanwhile."""
        return (await self._ask(CronRequest("pause", name, by=by))).cron_jobs[0]

    async def resume(self, name: str, *, by: str | None = None) -> CronInfo:
        """Resume a cron job from now on."""
        return (await self._ask(CronRequest("resume", name, by=by))).cron_jobs[0]

    async def remove(self, name: str, *, by: str | None = None) -> None:
        """Remove a cron job, but not its jobs. Applications that declare it register it again. Raises CronNotFound."""
        await self._ask(CronRequest("remove", name, by=by))

    async def run(self, name: str) -> str:
        """Enqueue a job now, even if another one is running or the cron job is paused; returns the job's id."""
        return (await self._ask(CronRequest("run", name, request_id=new_id()))).outcome

    async def _ask(self, request: CronRequest) -> CronReply:
        return await _ask(await self._jobs.control(), request)

    def _handler_of(self, function: Callable[..., Any], settings: CronSettings) -> AnyHandler:
        job_type = settings.get("job_type", getattr(function, "__name__", ""))
        shared: dict[str, Any] = {
            name: settings[name] for name in ("queue", "priority", "timeout", "retry") if name in settings
        }
        handler: AnyHandler = self._jobs.handler(job_type, **shared)(function)
        return handler

    def _free_name(self, handler: AnyHandler, settings: CronSettings) -> str:
        name = settings.get("name", handler.type.replace("_", "-"))
        if "name" in settings:
            return name
        count, free = 1, name
        while free in self._jobs.cron_jobs:
            count += 1
            free = f"{name}-{count}"
        return free


async def register(control: Control, job: CronJob) -> str:
    """Register a cron job. Raises InvalidJob, or ControlFailed if no coordinator answers."""
    job.check()
    return (await _ask(control, CronRequest("register", job.name, msgspec.to_builtins(job)))).outcome


async def register_all(control: Control, jobs: Sequence[CronJob]) -> None:
    """Register the cron jobs of an application, with retries until a coordinator answers."""
    waiting, tries = list(jobs), 0
    while waiting:
        try:
            while waiting:
                await register(control, waiting[0])
                waiting.pop(0)
        except InvalidJob as error:
            _log.error("cron job %s is refused: %s", waiting.pop(0).name, error)
        except (ControlFailed, ClientError) as error:
            level = logging.WARNING if tries < len(PAUSES_SECONDS) else logging.DEBUG
            _log.log(level, "cron job %s could not be registered, trying again: %s", waiting[0].name, error)
            await asyncio.sleep(PAUSES_SECONDS[min(tries, len(PAUSES_SECONDS) - 1)])
            tries += 1
    _log.info("cron jobs registered: %d", len(jobs))


async def _ask(control: Control, request: CronRequest) -> CronReply:
    answer = await control.ask(None, CRON_REQUEST, request, TIMEOUT_SECONDS)
    try:
        reply = msgspec.json.decode(answer, type=CronReply)
    except msgspec.DecodeError as error:
        raise ControlFailed(f"the coordinator sent an invalid reply: {error}") from error
    if reply.error == "not_found":
        raise CronNotFound(reply.message)
    if reply.error == "invalid_request":
        raise InvalidJob("cron_job", reply.message)
    if reply.error is not None:
        raise ControlFailed(reply.message)
    return reply


def _cron_job(handler: AnyHandler, cron: str, tz: str, settings: CronSettings, name: str) -> CronJob:
    args = handler.arguments.encode_any(settings.get("args", ()))
    if not handler.accepts(args):
        raise InvalidJob("args", f"do not fit the function of {handler.type}")
    merged: dict[str, Any] = {**handler.defaults, **settings}
    options = {key: msgspec.to_builtins(merged[key]) for key in sorted(OPTIONS & merged.keys())}
    for field in ("timeout", "visibility_timeout"):
        if isinstance(options.get(field), float):
            options[f"{field}_ms"] = round(options.pop(field) * 1000)
    jitter = settings.get("jitter", 0.0)
    return CronJob(
        name=name,
        cron=cron,
        type=handler.type,
        timezone=tz,
        args=args,
        options=options,
        overlap_policy=settings.get("overlap", "skip"),
        missed_policy=settings.get("missed", "once"),
        jitter=jitter.total_seconds() if isinstance(jitter, timedelta) else jitter,
        enabled=settings.get("enabled"),
        description=settings.get("description"),
    )
