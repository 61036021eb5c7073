"""Handlers: the functions that run jobs, and their typed `push`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import msgspec

from waybill.ojs.codec.arguments import Arguments, ResultForm, hints_of
from waybill.ojs.codec.forms import CustomTypes
from waybill.ojs.job import Job
from waybill.ojs.spec.envelope import Envelope, check_queue, check_type
from waybill.ojs.spec.retry import Retry
from waybill.ojs.spec.unique import Unique
from waybill.ojs.sync.job import SyncJob
from waybill.ojs.topology.topology import Topology

P = ParamSpec("P")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    J_co = TypeVarWithDefault("J_co", covariant=True, default=Any)
else:
    J_co = TypeVar("J_co", covariant=True)


class Options(TypedDict, total=False):
    """Options of a job besides its type and arguments.

    `delay` and `scheduled_at` both set when the job becomes available: a datetime with a time zone, a timedelta, an RFC
    3339 string, or a string like `+PT2S`. `timeout` and `visibility_timeout` are in seconds; after the latter without a
    sign of life, a coordinator replaces the attempt. `enqueue_ttl` is how long an available job may wait in its queue
    before the broker dead-letters it. `unique_key` is sent as `x-ojs-idempotency-key`. Without a `traceparent`, a job
    continues the trace of the job that pushes it, or starts a new one. `workflow_id` is for jobs of a workflow.
    `results`: whether the worker sends the outcome to the program that pushed the job. `result_ttl` is how many seconds
    coordinators keep the result: 0 not at all, -1 as long as the job. `result_size_limit` is in bytes of JSON.
    """

    id: str
    queue: str
    priority: int
    delay: timedelta
    scheduled_at: datetime | timedelta | str
    expires_at: datetime | timedelta | str
    retry: Retry
    timeout: float
    visibility_timeout: float
    meta: dict[str, object]
    tags: list[str]
    unique_key: str
    rate_limit: dict[str, object]
    unique: Unique
    enqueue_ttl: timedelta
    correlation_id: str
    traceparent: str
    tracestate: str
    workflow_id: str
    results: bool
    result_ttl: float
    result_size_limit: int


class NewJob(msgspec.Struct, Generic[J_co], frozen=True):
    """A job that has not been pushed yet. `J_co` is what its handler returns.

    `id` and `unique_key` take precedence over those of the options, so that many jobs can share one options object,
    which makes them fast to push.
    """

    type: str
    args: list[object]
    options: Options
    id: str | None = None
    unique_key: str | None = None


class MadeJob(NamedTuple):
    """A valid job with its id, and the options that are not part of its envelope."""

    envelope: Envelope
    options: Options


class Pusher(Protocol):
    """Pushes the jobs of a handler: `Jobs`, for example."""

    async def push_job(self, job: NewJob, /) -> Job[Any]:
        """Enqueue a job."""
        ...

    @property
    def sync(self) -> SyncPusher:
        """The synchronous version, for threads without an event loop."""
        ...

    def connect_to(self, uri: str, topology: Topology | None = None) -> None:
        """Use another broker from now on."""
        ...


class SyncPusher(Protocol):
    """See `Pusher`."""

    def push_job(self, job: NewJob, /, *, instead: str = ...) -> SyncJob[Any]:
        """Enqueue a job."""
        ...


class Handler(Generic[P, R_co]):
    """A function that runs the jobs of one type. Calling the handler calls the function itself.

    `R_co` is the type of its jobs' result: what a plain function returns, or what awaiting an async one returns.
    """

    def __init__(
        self,
        jobs: Pusher,
        job_type: str,
        function: Callable[P, object],
        defaults: Options,
        *,
        runs_in_process: bool = False,
        custom: CustomTypes | None = None,
        local_names: Mapping[str, object] | None = None,
    ) -> None:
        """Made by `Jobs.handler`. `local_names` are those of the place where the function is defined.

        Raises InvalidJob for an invalid type or queue; TypeError for a keyword-only parameter without a default after
        `*args`, for a function that cannot run in a process if it must, and for another handler.
        """
        if isinstance(function, Handler):
            raise TypeError(f"{job_type}: a handler is no function: `@jobs.cron` goes above `@jobs.handler`")
        check_type(job_type)
        check_queue(defaults.get("queue", "default"))
        self.type = job_type
        self.function = function
        self.defaults = defaults
        self.is_async = inspect.iscoroutinefunction(function)
        self.runs_in_process = runs_in_process
        if runs_in_process and (self.is_async or "<" in getattr(function, "__qualname__", "<")):
            raise TypeError(
                f"{job_type}: a handler for processes must be a plain function at the top level of a module"
            )
        self.signature = inspect.signature(function)
        self._jobs = jobs
        self._custom = custom or CustomTypes()
        self._local_names = local_names or {}
        parameters = self.signature.parameters.values()
        required = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
        if required and any(one.kind is one.VAR_POSITIONAL for one in parameters):
            raise TypeError(f"{job_type}: {required[0]} cannot follow a variable number of arguments")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> object:
        """Call the function directly."""
        return self.function(*args, **kwargs)

    @property
    def queue(self) -> str:
        """The default queue of its jobs."""
        return self.defaults.get("queue", "default")

    @functools.cached_property
    def arguments(self) -> Arguments:
        """Its parameters and their JSON conversion. Raises TypeError for an annotation without a JSON form."""
        return Arguments(self.type, self.function, self._hints, self._custom)

    @functools.cached_property
    def result(self) -> ResultForm:
        """Its result and the JSON conversion. Raises TypeError for an annotation without a JSON form."""
        return ResultForm(self._hints.get("return", Any), self._custom)

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        return hints_of(self.function, self._local_names)

    def connect_to(self, uri: str, topology: Topology) -> None:
        """Push to another broker from now on: for the child processes of a worker."""
        self._jobs.connect_to(uri, topology)

    async def push(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """Enqueue a job for this handler; see `Jobs.push` for its guarantees and errors."""
        return await self._jobs.push_job(self.job(*args, **kwargs))

    def push_sync(self, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R_co]:
        """Enqueue a job from a thread without an event loop; see `Jobs.sync`."""
        instead = f"{getattr(self.function, '__name__', 'handler')}.push(...)"
        return self._jobs.sync.push_job(self.job(*args, **kwargs), instead=instead)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob[R_co]:
        """Return a job for `Jobs.push_many`.

        Raises TypeError if the arguments do not fit the function, and InvalidJob, with the parameter, for an argument
        of the wrong type.
        """
        return NewJob(self.type, self.arguments.encode(args, kwargs), self.defaults)

    def options(self, **options: Unpack[Options]) -> ConfiguredHandler[P, R_co]:
        """Return this handler with other options for its jobs."""
        return ConfiguredHandler(self, options)

    def accepts(self, args: list[object]) -> bool:
        """Whether the function can be called with these arguments."""
        try:
            self.signature.bind(*args)
        except TypeError:
            return False
        return True


class ConfiguredHandler(Generic[P, R_co]):
    """A handler with options. `R_co` is the result of its jobs."""

    def __init__(self, handler: Handler[P, R_co], options: Options) -> None:
        """Made by `Handler.options`."""
        self._handler = handler
        self._options: Options = {**handler.defaults, **options}

    async def push(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """Enqueue a job; see `Jobs.push`."""
        return await self._handler._jobs.push_job(self.job(*args, **kwargs))  # noqa: SLF001 - a part of the handler

    def push_sync(self, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R_co]:
        """Enqueue a job from a thread without an event loop; see `Jobs.sync`."""
        name = getattr(self._handler.function, "__name__", "handler")
        pusher = self._handler._jobs.sync  # noqa: SLF001 - a part of the handler
        return pusher.push_job(self.job(*args, **kwargs), instead=f"{name}.options(...).push(...)")

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob[R_co]:
        """Return a job for `Jobs.push_many`."""
        return NewJob(self._handler.type, self._handler.arguments.encode(args, kwargs), self._options)


class PlainHandler(Handler[P, R_co]):
    """The handler of a plain function."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class AsyncHandler(Handler[P, R_co]):
    """The handler of an async function."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...


class Registration(Protocol):
    """The decorator that `Jobs.handler` returns."""

    @overload
    def __call__(  # type: ignore[overload-overlap] # a coroutine function is a plain one too, if it is not awaited
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> AsyncHandler[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> PlainHandler[P, T]: ...
    def __call__(self, function: Callable[P, Any], /) -> Any:
        """Register the function."""
        ...


AnyHandler = Handler[..., object]
