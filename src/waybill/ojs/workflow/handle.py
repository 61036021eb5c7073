"""A handle for a workflow: what `push` returns, or `WorkflowHandle(jobs, id)` for any pushed workflow."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from waybill.ojs.errors import ControlFailed, JobsError
from waybill.ojs.workflow.jobs_port import JobsPort
from waybill.ojs.workflow.progress import StepError
from waybill.ojs.workflow.requests import (
    CANCEL,
    INFO,
    LIST,
    RESULTS,
    RETRY,
    WAIT,
    StepInfo,
    WorkflowInfo,
    WorkflowReply,
    WorkflowRequest,
)

ANSWER_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 20.0
"""How long one request waits for the end. The coordinator that has it may be killed, and the next one does not know it.
"""
WAIT_MARGIN_SECONDS: Final = 5.0

R_co = TypeVar("R_co", covariant=True)

_reply = msgspec.json.Decoder(WorkflowReply).decode


class WorkflowNotCompleted(JobsError):
    """A workflow has failed or was cancelled, so it has no result. `errors` says which jobs failed, and why."""

    def __init__(self, workflow_id: str, state: str, errors: list[StepError]) -> None:
        """`state` is failed or cancelled."""
        first = f": {errors[0].step or 'workflow'}: {errors[0].message} ({errors[0].code})" if errors else ""
        super().__init__(f"workflow {workflow_id} is {state}{first}")
        self.workflow_id = workflow_id
        self.state = state
        self.errors = errors


class WorkflowHandle(Generic[R_co]):
    """A pushed workflow. `R_co` is the type of its result. All requests go to a coordinator."""

    __slots__ = ("_jobs", "id")

    def __init__(self, jobs: JobsPort, workflow_id: str) -> None:
        self.id = workflow_id
        self._jobs = jobs

    async def info(self, *, timeout: float = ANSWER_SECONDS) -> WorkflowInfo:  # noqa: ASYNC109 - the wait is not for us
        """Return all that is known. Raises LookupError for an unknown workflow, ControlFailed without a reply."""
        return self._found(await self._ask(INFO, WorkflowRequest(self.id), timeout))

    async def state(self) -> str:
        """Return pending, running, completed, failed or cancelled. Raises the errors of `info`."""
        return (await self.info()).state

    async def wait(self, *, timeout: float | None = None) -> WorkflowInfo:  # noqa: ASYNC109 - see `info`
        """Return what is known of the workflow once it has ended. Raises TimeoutError if that takes longer.

        If a coordinator is killed meanwhile, the next one is asked.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = WAIT_SECONDS if deadline is None else min(WAIT_SECONDS, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"workflow {self.id} has not ended")
            with contextlib.suppress(ControlFailed):
                request = WorkflowRequest(self.id, wait_seconds=left)
                reply = await self._ask(WAIT, request, left + WAIT_MARGIN_SECONDS)
                if reply.workflows and reply.workflows[0].is_over:
                    return reply.workflows[0]
                if not reply.workflows:
                    # Its first event may still be on its way.
                    await asyncio.sleep(min(1.0, max(left, 0.0)))

    async def result(self, *, timeout: float | None = None) -> R_co:  # noqa: ASYNC109 - see `info`
        """Wait for the end, and return the result. Raises WorkflowNotCompleted, or TimeoutError.

        The result of a chain is that of its last part. A group returns a list of its parts' results, and named steps
        return a dict. Each result has the type that its handler returns, if the handler is registered here. A result
        that was too large to be stored with the workflow is a dict with `result_ref`.
        """
        info = await self.wait(timeout=timeout)
        if info.state != "completed":
            raise WorkflowNotCompleted(self.id, info.state, info.errors)
        if info.result_omitted:
            return cast("R_co", await self._read_all(info))
        return cast("R_co", self._typed(info.type, info.steps, info.result))

    async def results(self, step: int | None = None) -> AsyncIterator[tuple[int, Any]]:
        """Yield the results of a large group's jobs, each with its index, page by page.

        `step` is the node of a group within the workflow, as in a `result_ref`. Jobs without a result are left out.
        """
        first: int | None = 0
        while first is not None:
            reply = await self._ask(RESULTS, WorkflowRequest(self.id, step=step or 0, first=first), ANSWER_SECONDS)
            for index, value in reply.results.items():
                yield index, msgspec.json.decode(value)
            first = reply.next

    async def cancel(self) -> WorkflowInfo:
        """Cancel the workflow and those that it has spawned: no more jobs start. Running jobs finish.

        Returns when the broker has the message to the workers. What they take until it arrives still runs.
        Raises WorkflowNotCompleted if it has already ended, LookupError, or ControlFailed.
        """
        reply = await self._ask(CANCEL, WorkflowRequest(self.id), ANSWER_SECONDS)
        info = self._found(reply)
        if reply.refused is not None:
            raise WorkflowNotCompleted(self.id, info.state, info.errors)
        return info

    async def retry(self) -> WorkflowInfo:
        """Retry the failed jobs of the workflow and continue it. Completed jobs do not run again.

        Raises ControlFailed for a workflow that has not failed, LookupError for an unknown one.
        """
        reply = await self._ask(RETRY, WorkflowRequest(self.id), ANSWER_SECONDS)
        info = self._found(reply)
        if reply.refused is not None:
            raise ControlFailed(f"workflow {self.id} cannot be retried: {reply.refused}")
        return info

    def __repr__(self) -> str:
        return f"<Workflow {self.id}>"

    def _found(self, reply: WorkflowReply) -> WorkflowInfo:
        if not reply.workflows:
            raise LookupError(f"no coordinator knows workflow {self.id}")
        return reply.workflows[0]

    async def _ask(self, kind: str, request: WorkflowRequest, seconds: float) -> WorkflowReply:
        return await ask(self._jobs, kind, request, seconds)

    async def _read_all(self, info: WorkflowInfo) -> object:
        """Read the results of a large group page by page. Large results of nested workflows stay references."""
        if info.type not in {"group", "batch"}:
            return {"result_ref": f"ojs:workflow/{self.id}/0"}
        values: list[Any] = [None] * info.metadata.job_count
        async for index, value in self.results():
            values[index] = value
        return values

    def _typed(self, kind: str, steps: list[StepInfo], value: Any) -> Any:  # noqa: ANN401 - a JSON value
        if kind in {"chain", "saga"}:
            steps = [step for step in steps if step.callback is None]
            return self._typed_step(steps[-1], value) if steps else value
        if isinstance(value, dict) and "result_ref" in value:
            return value
        parts = [step for step in steps if step.callback is None]
        if kind == "dag" and isinstance(value, dict):
            return {step.id: self._typed_step(step, value.get(step.id)) for step in parts}
        if kind in {"group", "batch"} and isinstance(value, dict):
            count = max([len(parts), *(int(place) + 1 for place in value)])
            found = [value.get(str(place)) for place in range(count)]
            return [
                self._typed_step(parts[place], one) if place < len(parts) else one for place, one in enumerate(found)
            ]
        return value

    def _typed_step(self, step: StepInfo, value: Any) -> Any:  # noqa: ANN401 - a JSON value
        if step.steps:
            return self._typed(step.type, step.steps, value)
        if step.state != "completed":
            return None
        handler = self._jobs.handlers.get(step.type)
        if handler is None or (isinstance(value, dict) and "result_ref" in value):
            return value
        try:
            return handler.result.decode(msgspec.json.encode(value))
        except ValueError:
            # An older version of the handler may have returned it.
            return value


async def ask(jobs: JobsPort, kind: str, request: WorkflowRequest, seconds: float) -> WorkflowReply:
    """Send a request to the coordinator that answers requests. Raises ControlFailed."""
    body = await (await jobs.control()).ask(None, kind, request, seconds)
    try:
        return _reply(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ControlFailed(f"the coordinator sent an invalid reply: {type(error).__name__}") from error


async def list_workflows(jobs: JobsPort, *, state: str | None = None, limit: int = 100) -> list[WorkflowInfo]:
    """Return the newest workflows, optionally only those in a state. Raises ControlFailed."""
    reply = await ask(jobs, LIST, WorkflowRequest(state=state, limit=limit), ANSWER_SECONDS)
    return reply.workflows
