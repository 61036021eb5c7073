"""The jobs that a test has pushed without a broker, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec

from waybill.ojs import Envelope, Jobs, State
from waybill.ojs.control.control import Control
from waybill.ojs.errors import PushFailed
from waybill.ojs.push.broker_substitute import BrokerSubstitute
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.results.errors import ResultTimeout
from waybill.ojs.results.inbox import Handle, Inbox
from waybill.ojs.results.outcome import Outcome, outcome_of
from waybill.ojs.spec.control_message import JobInfo
from waybill.testing.attempts import Attempts, PushedJob
from waybill.testing.caller_thread import call_from_here

T = TypeVar("T")

_ENDED: Final = {State.COMPLETED, State.DISCARDED, State.CANCELLED}


class RecordedJobs(BrokerSubstitute):
    """The jobs that were pushed in the block of `fake` or `inline`. It can be used after the block, too.

    Assertions compare `args` as JSON, `queue`, `state` and `count` for equality; `meta` must be part of the job's
    metadata. At least one job must match, or exactly `count`. An AssertionError lists the jobs found.
    """

    def __init__(self, jobs: Jobs, *, runs: bool = False, retries: bool = False) -> None:
        self._runs = runs
        self._retries = retries
        self._jobs: dict[str, PushedJob] = {}
        self._attempts = Attempts(jobs)

    # --- assertions ---

    def assert_enqueued(
        self,
        job_type: str,
        *,
        args: list[object] | None = None,
        queue: str | None = None,
        meta: dict[str, object] | None = None,
        state: State | str | None = None,
        count: int | None = None,
    ) -> list[PushedJob]:
        """Return the matching jobs that were pushed."""
        wanted = None if state is None else State(state)
        found = [
            job
            for job in self.all_enqueued(job_type, args=args, queue=queue)
            if (meta is None or meta.items() <= job.envelope.meta.items()) and wanted in {None, job.state}
        ]
        self._check(found, count, f"pushed job {job_type}", args)
        return found

    def refute_enqueued(self, job_type: str, *, args: list[object] | None = None, queue: str | None = None) -> None:
        """Assert that no such job was pushed."""
        self._check(self.all_enqueued(job_type, args=args, queue=queue), 0, f"pushed job {job_type}", args)

    def all_enqueued(
        self, job_type: str | None = None, *, args: list[object] | None = None, queue: str | None = None
    ) -> list[PushedJob]:
        """Return the pushed jobs, or the matching ones, in order."""
        return [
            job
            for job in self._jobs.values()
            if job_type in {None, job.type} and queue in {None, job.queue} and (args is None or job.args == args)
        ]

    def assert_performed(
        self, job_type: str, *, args: list[object] | None = None, count: int | None = None
    ) -> list[PushedJob]:
        """Return the matching jobs with at least one attempt."""
        return self._assert(job_type, args, count, "job that was tried", lambda job: job.attempt > 0)

    def refute_performed(self, job_type: str, *, args: list[object] | None = None) -> None:
        """Assert that no such job had an attempt."""
        self._assert(job_type, args, 0, "job that was tried", lambda job: job.attempt > 0)

    def assert_completed(
        self, job_type: str, *, args: list[object] | None = None, count: int | None = None
    ) -> list[PushedJob]:
        """Return the matching jobs that completed."""
        return self._assert(job_type, args, count, "job that was done", lambda job: job.state is State.COMPLETED)

    def assert_failed(
        self, job_type: str, *, args: list[object] | None = None, count: int | None = None
    ) -> list[PushedJob]:
        """Return the matching jobs with a failed attempt."""
        return self._assert(job_type, args, count, "job that has failed", lambda job: bool(job.errors))

    def assert_job_state(self, job_id: str, state: State | str) -> None:
        """Assert that a job is in a state."""
        job = self._jobs.get(job_id)
        there = None if job is None else job.state.value
        if there != State(state).value:
            raise AssertionError(f"job {job_id} is {there or 'not here'}, and not {State(state).value}")

    def clear(self) -> None:
        """Forget all jobs and all planned failures."""
        self._jobs.clear()
        self._attempts.clear()

    # --- faults and work ---

    def fail_next(self, job_type: str, error: Exception) -> None:
        """Make the next attempt of a job type raise `error` instead of calling its handler."""
        self._attempts.fail(job_type, error, once=True)

    def fail_all(self, job_type: str, error: Exception) -> None:
        """Make every attempt of a job type raise `error`, until `clear`."""
        self._attempts.fail(job_type, error, once=False)

    def drain(self, queue: str | None = None, *, max_jobs: int | None = None, with_scheduled: bool = False) -> int:
        """Run the waiting jobs in order, and the jobs that they push, from a thread without an event loop.

        Returns how many were run. Failed jobs are retried without delays, as their policies say. Jobs that are
        scheduled for later run only if `with_scheduled`.
        """
        return self.call(self.drain_async(queue, max_jobs=max_jobs, with_scheduled=with_scheduled))

    async def drain_async(
        self, queue: str | None = None, *, max_jobs: int | None = None, with_scheduled: bool = False
    ) -> int:
        """Like `drain`, in an event loop."""
        states = {State.AVAILABLE, State.SCHEDULED} if with_scheduled else {State.AVAILABLE}
        count = 0
        while max_jobs is None or count < max_jobs:
            waiting = [
                job
                for job in self._jobs.values()
                if job.state in states and queue in {None, job.queue} and self._attempts.knows(job)
            ]
            if not waiting:
                break
            await self._attempts.run(waiting[0], retries=True)
            count += 1
        return count

    # --- for `Jobs` ---

    async def enqueue(self, jobs: list[Outgoing]) -> list[Envelope | PushFailed]:
        """Record jobs, and run them one by one if the mode is `inline`."""
        pushed = [PushedJob.of(one) for one in jobs]
        self._jobs |= {job.id: job for job in pushed}
        for job in pushed if self._runs else ():
            if self._attempts.knows(job):
                error = await self._attempts.run(job, retries=self._retries)
                if error is not None and not self._retries:
                    raise error
        return [one.envelope for one in jobs]

    def find(self, job_id: str) -> PushedJob | None:
        """Return a job by its id."""
        return self._jobs.get(job_id)

    def control(self) -> Control:
        return _RecordedControl(self)

    def inbox(self) -> Inbox:
        return _RecordedInbox(self)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` for a thread without an event loop. Plain handlers run in that thread."""
        return call_from_here(work)

    def close(self) -> None:
        """Close the resources of handlers."""
        self._attempts.close()

    def _assert(
        self,
        job_type: str,
        args: list[object] | None,
        count: int | None,
        what: str,
        holds: Callable[[PushedJob], bool],
    ) -> list[PushedJob]:
        found = [job for job in self.all_enqueued(job_type, args=args) if holds(job)]
        self._check(found, count, f"{what}, {job_type}", args)
        return found

    def _check(self, found: list[PushedJob], count: int | None, what: str, args: list[object] | None) -> None:
        if len(found) == count if count is not None else found:
            return
        expected = f"{'at least one' if count is None else count} {what}" + (
            f" with {args}" if args is not None else ""
        )
        there = "\n".join(f"  {job}" for job in self._jobs.values())
        raise AssertionError(f"expected {expected}, found {len(found)}:\n{there or '  nothing'}")


class _RecordedControl(Control):
    """Answers requests from the recorded jobs."""

    def __init__(self, recorded: RecordedJobs) -> None:
        self._recorded = recorded

    async def cancel(self, job_id: str, queue: str | None = None) -> None:
        """Cancel a waiting job."""
        job = self._recorded.find(job_id)
        if job is not None and job.state not in _ENDED:
            job.state = State.CANCELLED

    async def info(self, job_id: str, queue: str | None, timeout_seconds: float) -> JobInfo | None:
        job = self._recorded.find(job_id)
        return None if job is None else job.info()

    async def newest(self, queue: str | None, state: str | None, limit: int, timeout_seconds: float) -> list[JobInfo]:
        """Return the jobs of a queue, or of all, newest first."""
        found = [job for job in self._recorded.all_enqueued(queue=queue) if state in {None, job.state.value}]
        return [job.info() for job in reversed(found)][:limit]

    async def ask(
        self, queue: str | None, kind: str, request: msgspec.Struct, timeout_seconds: float, *, again: bool = False
    ) -> bytes:
        """Raise: cron jobs and workflows need a coordinator."""
        raise RuntimeError(BrokerSubstitute.no_broker)

    async def pause(self, queue: str, by: str | None) -> bool:
        """Raise: there is no worker to pause."""
        raise RuntimeError(BrokerSubstitute.no_broker)

    async def resume(self, queue: str, by: str | None) -> bool:
        raise RuntimeError(BrokerSubstitute.no_broker)

    async def is_paused(self, queue: str) -> bool:
        raise RuntimeError(BrokerSubstitute.no_broker)


class _RecordedInbox(Inbox):
    """Has the outcomes of jobs, and never waits."""

    def __init__(self, recorded: RecordedJobs) -> None:
        self._recorded = recorded

    async def outcome(self, handle: Handle, timeout_seconds: float | None) -> Outcome:
        """Return the outcome of a job. Raises ResultTimeout if it has not ended."""
        job = self._recorded.find(handle.id)
        if job is None or job.state not in _ENDED:
            state = "not here" if job is None else job.state.value
            raise ResultTimeout(handle.id, f"it is {state}: in this test, only `drain` runs jobs")
        return outcome_of(job.info())
