"""The building blocks of workflows: `chain`, `group`, `batch`, `chord`, `Workflow` for named steps, and `Saga`.

    await chain(fetch.job(url), group(resize.job(one) for one in sizes), publish.job()).push(jobs)

A part is a job made by a handler, or another workflow. The jobs of a group may be any iterable. If there are more than
MAX_EMBEDDED and the workflow begins with them, they are not held in memory, but pushed one after another.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator, Sized
from datetime import datetime, timedelta
from itertools import chain as joined
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

import msgspec

from waybill.ojs.errors import InvalidJob
from waybill.ojs.handler import NewJob
from waybill.ojs.spec.envelope import SYSTEM_MANAGED
from waybill.ojs.workflow.definition import COMPENSATION, Definition, FailurePolicy, NodeKind
from waybill.ojs.workflow.handle import WorkflowHandle
from waybill.ojs.workflow.jobs_port import JobsPort
from waybill.ojs.workflow.push import Stream, push_workflow, spawn_workflow

if TYPE_CHECKING:
    from waybill.ojs.client import Jobs
    from waybill.ojs.sync.workflow import SyncWorkflow

MAX_EMBEDDED: Final = 100
"""The maximum number of jobs in a group's definition; those of a larger group are streamed."""
DELAY: Final = "delay_ms"
"""How long a step waits after its turn has come."""

_UNSUITABLE: Final = frozenset({"id", "unique_key", "enqueue_ttl", "correlation_id", "traceparent", "tracestate"})

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")


class Shape(Generic[R_co]):
    """A workflow that has not been pushed yet. `R_co` is the type of its result. It can be pushed once."""

    kind: NodeKind = "chain"

    def __init__(self, name: str = "") -> None:
        """`name` is for display."""
        self.name = name

    def named(self, name: str) -> Shape[R_co]:
        """Set the name for lists and events, and return the workflow."""
        self.name = name
        return self

    async def push(
        self,
        jobs: JobsPort,
        *,
        expires: datetime | timedelta | None = None,
        id: str | None = None,  # noqa: A002 - its name
    ) -> WorkflowHandle[R_co]:
        """Push the workflow; returns when it is safe, and its streamed jobs are in their queues.

        A coordinator starts its steps. `expires` is when the workflow fails if it is not completed. Pass an `id` of
        `new_workflow_id` to be able to push again after a crash: a second push of an id changes nothing. Raises
        InvalidJob before anything is sent, or PushFailed.
        """
        definition, stream = self.define(jobs, may_stream=True)
        return WorkflowHandle(jobs, await push_workflow(definition, stream, jobs, expires=expires, workflow_id=id))

    def push_sync(
        self,
        jobs: Jobs,
        *,
        expires: datetime | timedelta | None = None,
        id: str | None = None,  # noqa: A002 - its name
    ) -> SyncWorkflow[R_co]:
        """Push the workflow from a thread without an event loop, like `push`; see `Jobs.sync`."""
        pushed = jobs.sync.call(lambda twin: self.push(twin, expires=expires, id=id), "workflow.push(...)")
        return jobs.sync.workflow(pushed.id)

    async def spawn(self, jobs: JobsPort) -> WorkflowHandle[R_co]:
        """Push the workflow from a handler, as part of the current job.

        If that job is a step of a workflow, the step completes when this workflow does, and fails with it. A handler
        that is retried spawns the same workflows under the same ids, so none starts twice. Raises LookupError
        elsewhere.
        """
        definition, stream = self.define(jobs, may_stream=True)
        return WorkflowHandle(jobs, await spawn_workflow(definition, stream, jobs))

    def define(self, jobs: JobsPort, *, may_stream: bool = False) -> tuple[Definition, Stream | None]:
        """Return the definition, and the jobs to be streamed. Raises InvalidJob."""
        raise NotImplementedError


Part = NewJob[R_co] | Shape[R_co]


def define_part(part: Part[Any], jobs: JobsPort, *, may_stream: bool = False) -> tuple[Definition, Stream | None]:
    """Return the definition of a job or a workflow, and the jobs to be streamed."""
    if isinstance(part, Shape):
        return part.define(jobs, may_stream=may_stream)
    if not isinstance(part, NewJob):
        text = f"{type(part).__name__} is neither a job nor a workflow: write handler.job(...)"
        raise InvalidJob("workflow", text, code="INVALID_WORKFLOW")
    return Definition("job", job=job_of(part, jobs)), None


def job_of(job: NewJob[Any], jobs: JobsPort) -> dict[str, object]:
    """Return the envelope of a step without its own id and times."""
    given = sorted(job.options.keys() & _UNSUITABLE)
    if given or job.id is not None or job.unique_key is not None:
        name = given[0] if given else "id"
        raise InvalidJob(name, "cannot be given for a step of a workflow", code="INVALID_WORKFLOW")
    made: dict[str, object] = msgspec.to_builtins(jobs.make(job).envelope)
    written = {"specversion": "1.0", "queue": "default", "args": [], **made}
    for field in (*SYSTEM_MANAGED, "id"):
        written.pop(field, None)
    delay = job.options.get("delay")
    if delay is not None:
        # It counts from the step's turn.
        del written["scheduled_at"]
        written[DELAY] = delay // timedelta(milliseconds=1)
    return written


class Chain(Shape[R_co]):
    """Parts in sequence."""

    kind: NodeKind = "chain"

    def __init__(self, parts: tuple[Part[Any], ...]) -> None:
        """Use `chain` or `chord`."""
        super().__init__()
        self._parts = parts

    def define(self, jobs: JobsPort, *, may_stream: bool = False) -> tuple[Definition, Stream | None]:
        """Return the definition; the first part may be streamed."""
        found = [
            define_part(part, jobs, may_stream=may_stream and index == 0) for index, part in enumerate(self._parts)
        ]
        stream = found[0][1] if found else None
        return Definition("chain", self.name, steps=[definition for definition, _ in found]), stream


class Group(Shape[R_co]):
    """Parts in parallel."""

    kind: NodeKind = "group"

    def __init__(self, parts: Iterable[Part[Any]] | AsyncIterable[NewJob]) -> None:
        """Use `group`."""
        super().__init__()
        self._parts = parts

    def define(self, jobs: JobsPort, *, may_stream: bool = False) -> tuple[Definition, Stream | None]:
        """Return the definition; jobs beyond MAX_EMBEDDED are streamed where allowed."""
        parts = self._parts
        if isinstance(parts, AsyncIterable):
            return Definition(self.kind, self.name, streamed=True), aiter(parts)
        rest = iter(parts)
        first = list(islice(rest, MAX_EMBEDDED + 1)) if may_stream else list(rest)
        if len(first) > MAX_EMBEDDED and may_stream and all(isinstance(part, NewJob) for part in first):
            expected = len(parts) if isinstance(parts, Sized) else None
            return Definition(self.kind, self.name, streamed=True, expected=expected), _only_jobs(joined(first, rest))
        steps = [define_part(part, jobs)[0] for part in joined(first, rest)]
        return Definition(self.kind, self.name, steps=steps), None


class Batch(Group[R_co]):
    """A group with callbacks."""

    kind: NodeKind = "batch"

    def __init__(self, parts: Iterable[Part[Any]] | AsyncIterable[NewJob], callbacks: dict[str, NewJob | None]) -> None:
        """Use `batch`."""
        super().__init__(parts)
        self._callbacks = callbacks

    def define(self, jobs: JobsPort, *, may_stream: bool = False) -> tuple[Definition, Stream | None]:
        """Return the definition with its callbacks."""
        definition, stream = super().define(jobs, may_stream=may_stream)
        definition.callbacks = {
            kind: define_part(job, jobs)[0] for kind, job in self._callbacks.items() if job is not None
        }
        return definition, stream


class Step(Generic[R_co]):
    """A step of a `Workflow`, for `depends_on`."""

    def __init__(self, name: str) -> None:
        """Use `Workflow.step`."""
        self.name = name


class Workflow(Shape[dict[str, Any]]):
    """Named steps; each starts when its dependencies are completed.

        order = Workflow("order")
        paid = order.step("pay", pay.job(42))
        packed = order.step("pack", pack.job(42))
        order.step("send", send.job(42), depends_on=[paid, packed])
        await order.push(jobs)

    Its result is a dict of the steps' results by name. If a step fails, steps that depend on it never start; the others
    continue.
    """

    kind: NodeKind = "dag"

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self._steps: dict[str, tuple[Part[Any], list[str]]] = {}

    def step(self, name: str, part: Part[R], *, depends_on: Iterable[Step[Any] | str] = ()) -> Step[R]:
        """Add a step: a job, or a workflow. Raises InvalidJob for an existing name."""
        if name in self._steps or not name:
            raise InvalidJob(
                "workflow", f"already has a step {name!r}, or the step has no name", code="INVALID_WORKFLOW"
            )
        self._steps[name] = part, [one if isinstance(one, str) else one.name for one in depends_on]
        return Step(name)

    def define(self, jobs: JobsPort, *, may_stream: bool = False) -> tuple[Definition, Stream | None]:
        """Return the definition; nothing in it is streamed."""
        del may_stream
        steps = []
        for name, (part, needed) in self._steps.items():
            definition, _ = define_part(part, jobs)
            definition.name, definition.depends_on = name, needed
            steps.append(definition)
        return Definition("dag", self.name, steps=steps), None


class Saga(Shape[Any]):
    """Steps in sequence, of which the completed ones are undone when one fails, the last one first.

        order = Saga("order")
        order.step("charge", charge.job(49), undo=refund.job(49))
        order.step("ship", ship.job("A-17"))
        await order.push(jobs)

    Its result is that of the last step. It is `compensated` in the end if a step has failed, or `failed` if one of the
    jobs that undo has failed; a retry continues there. These jobs get the results of all steps by name.
    """

    kind: NodeKind = "saga"

    def __init__(self, name: str = "", *, failure_policy: FailurePolicy = "compensate") -> None:
        """With the policy "skip", the next step follows a failed one, and nothing is undone.

        A step has failed when its job has no attempts left, so "retry" is no other than "compensate" here.
        """
        super().__init__(name)
        self._policy = failure_policy
        self._steps: dict[str, tuple[NewJob[Any], NewJob[Any] | None]] = {}

    def step(self, name: str, job: NewJob[Any], *, undo: NewJob[Any] | None = None) -> None:
        """Add a step. Raises InvalidJob for an existing name."""
        if name in self._steps or not name:
            raise InvalidJob(
                "workflow", f"already has a step {name!r}, or the step has no name", code="INVALID_WORKFLOW"
            )
        self._steps[name] = job, undo

    def define(self, jobs: JobsPort, *, may_stream: bool = False) -> tuple[Definition, Stream | None]:
        """Return the definition; nothing in it is streamed."""
        del may_stream
        saga = Definition("saga", self.name, failure_policy=self._policy)
        for name, (job, undo) in self._steps.items():
            saga.steps.append(Definition("job", name, job=job_of(job, jobs)))
            if undo is not None:
                saga.callbacks[f"{COMPENSATION}{name}"] = Definition("job", job=job_of(undo, jobs))
        return saga, None


@overload
def chain(first: Part[R], /) -> Shape[R]: ...
@overload
def chain(first: Part[Any], second: Part[R], /) -> Shape[R]: ...
@overload
def chain(first: Part[Any], second: Part[Any], third: Part[R], /) -> Shape[R]: ...
@overload
def chain(first: Part[Any], second: Part[Any], third: Part[Any], fourth: Part[R], /) -> Shape[R]: ...
@overload
def chain(*parts: Part[Any]) -> Shape[Any]: ...
def chain(*parts: Part[Any]) -> Shape[Any]:
    """Return a workflow of parts in sequence; its result is that of the last part.

    If one fails, those after it never start (ojs-workflows section 4).
    """
    return Chain(parts)


@overload
def group(parts: Iterable[Part[R]] | AsyncIterable[NewJob[R]], /) -> Shape[list[R]]: ...
@overload
def group(*parts: Part[R]) -> Shape[list[R]]: ...
def group(*parts: Any) -> Shape[Any]:
    """Return a workflow of parts in parallel; its result is a list of their results.

    If one of them fails, it fails when all have ended (section 5).
    """
    return Group(_one_iterable(parts))


def batch(
    parts: Iterable[Part[R]] | AsyncIterable[NewJob[R]],
    *,
    on_complete: NewJob | None = None,
    on_success: NewJob | None = None,
    on_failure: NewJob | None = None,
) -> Shape[list[R | None]]:
    """Return a group with callbacks: jobs that start when all of its parts have ended (section 6).

    Its result is a list of its parts' results, with None for a failed part.
    """
    return Batch(parts, {"on_complete": on_complete, "on_success": on_success, "on_failure": on_failure})


def chord(parts: Iterable[Part[Any]] | AsyncIterable[NewJob], callback: Part[R]) -> Shape[R]:
    """Return a group, followed by a job that gets its results if all succeed: `chain(group(parts), callback)`."""
    return Chain((Group(parts), callback))


def _one_iterable(parts: tuple[Any, ...]) -> Any:  # noqa: ANN401 - whatever it was called with
    if len(parts) == 1 and not isinstance(parts[0], (NewJob, Shape)):
        return parts[0]
    return parts


def _only_jobs(parts: Iterable[Part[Any]]) -> Iterator[NewJob]:
    for part in parts:
        if not isinstance(part, NewJob):
            text = f"a group of more than {MAX_EMBEDDED} parts may contain only jobs, not {type(part).__name__}"
            raise InvalidJob("workflow", text, code="INVALID_WORKFLOW")
        yield part
