"""Attempts at jobs that were pushed without a broker: handler, middleware, resources and outcome."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, cast

import msgspec

from waybill.client import BasicProperties, copied_delivery
from waybill.ojs import Envelope, Jobs, State, read_envelope
from waybill.ojs.errors import InvalidArguments, PostponeJob, ResponseCode
from waybill.ojs.handler import AnyHandler
from waybill.ojs.job_context import JobContext, Reporter, current
from waybill.ojs.middleware.chain import Call, compose
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.resources import Resources
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.identifiers import new_traceparent
from waybill.ojs.spec.retry import may_retry
from waybill.ojs.spec.timestamps import format_timestamp
from waybill.ojs.sync.background import background
from waybill.ojs.worker.execution import Execution, Failure, arguments_failure, failure_of
from waybill.testing.caller_thread import run_in_caller

WORKER: Final = "test"


@dataclass
class PushedJob:
    """A job that was pushed in a test. `attempt` is the number of the last attempt, 0 before the first."""

    id: str
    type: str
    queue: str
    args: list[object]
    envelope: Envelope = field(repr=False)
    state: State = State.AVAILABLE
    attempt: int = 0
    result: object = None
    errors: list[Exception] = field(default_factory=list)
    failure: Failure | None = field(default=None, repr=False)

    @classmethod
    def of(cls, job: Outgoing) -> PushedJob:
        """Record a job as it would be in its message."""
        envelope = read_envelope(job.envelope.encode())
        state = State(job.envelope.state or State.AVAILABLE)
        return cls(envelope.id, envelope.type, envelope.queue, envelope.args, envelope, state)

    def info(self) -> JobInfo:
        """Return the job as a coordinator would."""
        error = None if self.failure is None or self.state is State.COMPLETED else self.failure.record
        return JobInfo(
            self.id,
            self.type,
            self.queue,
            self.state.value,
            self.attempt,
            enqueued_at=self.envelope.enqueued_at,
            error=None if error is None else msgspec.to_builtins(error),
            result=self.result,
        )


class _Origin:
    """Stands in for the delivery of a job."""

    def __init__(self) -> None:
        self.properties = BasicProperties(headers={"x-ojs-traceparent": new_traceparent()})


class _Reporter(Reporter):
    """Records what a handler reports."""

    def progress(self, job: JobContext) -> None:
        """Ignored in tests."""

    def checkpoint(self, job: JobContext) -> None:
        """Store the checkpoint for the next attempt."""
        if job.new_checkpoint is not None:
            job.envelope.checkpoint = msgspec.to_builtins(job.new_checkpoint)


class Attempts:
    """Runs the attempts of recorded jobs."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._resources = Resources()
        self._always: dict[str, Exception] = {}
        self._next: dict[str, list[Exception]] = {}

    def knows(self, job: PushedJob) -> bool:
        """Whether a job has a handler; jobs of other programs are only recorded."""
        return job.type in self._jobs.handlers

    def fail(self, job_type: str, error: Exception, *, once: bool) -> None:
        """Make attempts of a job type raise `error`."""
        if once:
            self._next.setdefault(job_type, []).append(error)
        else:
            self._always[job_type] = error

    def clear(self) -> None:
        """Stop raising errors."""
        self._always.clear()
        self._next.clear()

    def close(self) -> None:
        """Close all resources."""
        if self._resources.has_any:
            background().call(self._resources.close())

    async def run(self, job: PushedJob, *, retries: bool) -> Exception | None:
        """Run a job, with `retries` until it completes or is discarded. Return the last error, None if it completed."""
        policy = job.envelope.policy
        while True:
            error = await self._try(job)
            if error is None or job.state is State.SCHEDULED:
                return None
            failure = job.failure
            asks_for_more = failure is None or failure.response is ResponseCode.RETRY
            kind = type(error).__name__ if failure is None else failure.record.type
            if not (retries and asks_for_more and may_retry(policy, job.attempt, kind)):
                job.state = State.DISCARDED
                return error

    async def _try(self, job: PushedJob) -> Exception | None:
        handler = self._jobs.handlers[job.type]
        job.attempt += 1
        job.state = State.ACTIVE
        context = JobContext(job.envelope, job.queue, job.attempt, WORKER, _Origin(), _Reporter())
        token = current.set(context)
        try:
            call = compose(list(self._jobs.middleware), self._call_of(handler, job))
            job.result = msgspec.json.decode(handler.result.encode(await call(context)))
        except PostponeJob:
            job.state = State.SCHEDULED
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            job.errors.append(error)
            job.failure = _failure_of(error, job)
            return error
        else:
            job.state = State.COMPLETED
        finally:
            current.reset(token)
        return None

    def _call_of(self, handler: AnyHandler, job: PushedJob) -> Call:
        async def call(context: JobContext) -> object:
            planned = self._next.get(job.type)
            error = planned.pop(0) if planned else self._always.get(job.type)
            if error is not None:
                raise error
            await self._resources.open(handler.function)
            invoke = handler.arguments.caller(self._resources.bind(handler.function))
            if handler.is_async:
                return await cast("Awaitable[object]", invoke(context.envelope.args))
            return await run_in_caller(lambda: invoke(context.envelope.args))

        return call


def _failure_of(error: Exception, job: PushedJob) -> Failure:
    execution = Execution(copied_delivery(b"", job.envelope.encode()), job.queue, job.envelope, job.attempt)
    now = format_timestamp(datetime.now(UTC))
    if isinstance(error, InvalidArguments):
        return arguments_failure(execution, error, now)
    return failure_of(error, execution, now)
