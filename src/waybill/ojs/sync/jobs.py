"""`Jobs.sync`: push and query jobs from code without an event loop.

    jobs.sync.push_many([send_email.job(address, "Hello") for address in addresses])
    job = send_email.push_sync("ada@example.com", "Hello")

One loop per process runs in its own thread, with one connection for each `Jobs` object. It starts with the first call,
also in a forked child, and is closed at the exit of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, Unpack

from waybill.client import WrongEventLoop
from waybill.ojs.handler import NewJob, Options
from waybill.ojs.job import Job
from waybill.ojs.push.broker_substitute import BrokerSubstitute
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.sync.background import background, in_a_loop, started
from waybill.ojs.sync.job import SyncJob
from waybill.ojs.sync.pipeline import AnyJob, Pushed, SyncPipeline
from waybill.ojs.topology.topology import Topology
from waybill.ojs.workflow.jobs_port import JobsPort

if TYPE_CHECKING:
    from waybill.ojs.cron.crons import Crons
    from waybill.ojs.sync.crons import SyncCrons
    from waybill.ojs.sync.workflow import SyncWorkflow
    from waybill.ojs.workflow.handle import WorkflowHandle

T = TypeVar("T")


class AsyncJobs(JobsPort, Protocol):
    """The methods of `Jobs` that `SyncJobs` calls in the loop."""

    uri: str
    topology: Topology
    awaits_events: bool
    broker_substitute: BrokerSubstitute | None

    def twin(self) -> Self:
        """Return an object with the same handlers and settings but its own connection."""
        ...

    @property
    def crons(self) -> Crons:
        """The cron jobs."""
        ...

    def job(self, job_id: str) -> Job[Any]: ...
    async def push(self, job_type: str, args: Sequence[object] = (), **options: Unpack[Options]) -> Job[Any]: ...
    async def push_job(self, job: NewJob | Envelope | dict[str, object]) -> Job[Any]: ...
    async def push_many(self, jobs: Iterable[AnyJob]) -> list[Envelope]: ...
    async def cancel(self, job_id: str, queue: str | None = None) -> None: ...
    async def info(self, job_id: str, queue: str | None = None, *, timeout: float = ...) -> JobInfo | None: ...  # noqa: ASYNC109 - see `Jobs`
    async def newest(
        self, queue: str | None = None, *, state: str | None = None, limit: int = ...
    ) -> list[JobInfo]: ...
    async def pause(self, queue: str, *, by: str | None = None) -> bool: ...
    async def resume(self, queue: str, *, by: str | None = None) -> bool: ...
    async def is_paused(self, queue: str) -> bool: ...
    async def close(self) -> None: ...


class SyncJobs:
    """The blocking methods of a `Jobs` object, for any thread without an event loop.

    Arguments, results and errors are those of `Jobs`; jobs are returned as `SyncJob`. A push of one job returns after
    the broker has confirmed it; its job.enqueued event follows within 5 ms, and the exit of the process waits for it.
    Inside a running event loop, calls raise WrongEventLoop, which names the asynchronous equivalent.
    """

    def __init__(self, jobs: AsyncJobs) -> None:
        self._jobs = jobs

    def push(self, job_type: str, args: Sequence[object] = (), **options: Unpack[Options]) -> SyncJob[Any]:
        """As `Jobs.push`."""
        return self._handle(self._call(lambda jobs: jobs.push(job_type, args, **options), "jobs.push(...)"))

    def push_job(
        self, job: NewJob | Envelope | dict[str, object], *, instead: str = "jobs.push_job(...)"
    ) -> SyncJob[Any]:
        """As `Jobs.push_job`."""
        return self._handle(self._call(lambda jobs: jobs.push_job(job), instead))

    def push_many(self, jobs: Iterable[AnyJob]) -> list[Envelope]:
        """As `Jobs.push_many`. An iterable is read before anything is sent."""
        batch = list(jobs)
        return self._call(lambda twin: twin.push_many(batch), "jobs.push_many(...)")

    def pipeline(self) -> SyncPipeline:
        """Push many jobs without waiting for each; see `SyncPipeline`."""
        return SyncPipeline(self._start)

    def job(self, job_id: str) -> SyncJob[Any]:
        """As `Jobs.job`."""
        self._check("jobs.job(...)")
        return self._handle(self._twin().job(job_id))

    def workflow(self, workflow_id: str) -> SyncWorkflow[Any]:
        """Return a handle for any workflow by its id. Makes no request."""
        from waybill.ojs.sync.workflow import SyncWorkflow  # noqa: PLC0415 - rarely needed; imports take time
        from waybill.ojs.workflow.handle import WorkflowHandle  # noqa: PLC0415 - see above

        def call(work: Callable[[WorkflowHandle[Any]], Coroutine[Any, Any, T]], instead: str) -> T:
            return self._call(lambda jobs: work(WorkflowHandle(jobs, workflow_id)), instead)

        return SyncWorkflow(workflow_id, call)

    @property
    def crons(self) -> SyncCrons:
        """The cron jobs, as in `Jobs.crons`."""
        from waybill.ojs.sync.crons import SyncCrons  # noqa: PLC0415 - rarely needed; imports take time

        def call(work: Callable[[Crons], Coroutine[Any, Any, T]], instead: str) -> T:
            return self._call(lambda jobs: work(jobs.crons), instead)

        return SyncCrons(call)

    def cancel(self, job_id: str, queue: str | None = None) -> None:
        """As `Jobs.cancel`."""
        self._call(lambda jobs: jobs.cancel(job_id, queue), "jobs.cancel(...)")

    def info(self, job_id: str, queue: str | None = None, *, timeout: float = 10.0) -> JobInfo | None:
        """As `Jobs.info`."""
        return self._call(lambda jobs: jobs.info(job_id, queue, timeout=timeout), "jobs.info(...)")

    def newest(self, queue: str | None = None, *, state: str | None = None, limit: int = 100) -> list[JobInfo]:
        """As `Jobs.newest`."""
        return self._call(lambda jobs: jobs.newest(queue, state=state, limit=limit), "jobs.newest(...)")

    def pause(self, queue: str, *, by: str | None = None) -> bool:
        """As `Jobs.pause`."""
        return self._call(lambda jobs: jobs.pause(queue, by=by), "jobs.pause(...)")

    def resume(self, queue: str, *, by: str | None = None) -> bool:
        """As `Jobs.resume`."""
        return self._call(lambda jobs: jobs.resume(queue, by=by), "jobs.resume(...)")

    def is_paused(self, queue: str) -> bool:
        """As `Jobs.is_paused`."""
        return self._call(lambda jobs: jobs.is_paused(queue), "jobs.is_paused(...)")

    def call(self, work: Callable[[AsyncJobs], Coroutine[Any, Any, T]], instead: str) -> T:
        """Run `work` in the loop with the object there. Internal to the package."""
        return self._call(work, instead)

    def close(self) -> None:
        """Wait until all events are confirmed, and disconnect. The next call connects again.

        The exit of the process does so, too.
        """
        here = started()
        if here is not None:
            self._check("jobs.close()")
            here.forget(self._jobs)

    def _start(self, batch: list[AnyJob]) -> Pushed:
        self._check("jobs.push_many(...)")
        broker_substitute = self._jobs.broker_substitute
        if broker_substitute is not None and not broker_substitute.is_remote:
            pushed = broker_substitute.call(self._jobs.push_many(batch))
            return lambda: pushed
        return background().start(self._twin().push_many(batch))

    def _handle(self, job: Job[Any]) -> SyncJob[Any]:
        made_in = started()

        def call(work: Callable[[Job[Any]], Coroutine[Any, Any, T]], instead: str) -> T:
            # A forked child uses the id, because the handle's connection is its parent's.
            return self._call(lambda jobs: work(job if started() is made_in else jobs.job(job.id)), instead)

        return SyncJob(job, call)

    def _twin(self) -> AsyncJobs:
        """Return the object in this process's loop, for the current broker."""
        jobs = self._jobs
        return background().client(
            jobs, self._make_twin, lambda twin: twin.uri == jobs.uri and twin.topology == jobs.topology
        )

    def _make_twin(self) -> AsyncJobs:
        # Else a thread that pushes one job after the other would wait for two disk syncs per job.
        twin = self._jobs.twin()
        twin.awaits_events = False
        return twin

    def _call(self, work: Callable[[AsyncJobs], Coroutine[Any, Any, T]], instead: str) -> T:
        self._check(instead)
        broker_substitute = self._jobs.broker_substitute
        if broker_substitute is not None and not broker_substitute.is_remote:
            return broker_substitute.call(work(self._jobs))
        return background().call(work(self._twin()))

    @staticmethod
    def _check(instead: str) -> None:
        if in_a_loop():
            raise WrongEventLoop(
                f"this would block the running event loop: write `await {instead}`, "
                "or call it in a thread with asyncio.to_thread"
            )
