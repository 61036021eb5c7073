"""Notifies the hooks of what becomes of jobs. Without hooks, it creates no objects."""

from __future__ import annotations

from waybill.ojs.hooks import HookCalls, Moment
from waybill.ojs.spec.envelope import Envelope, ErrorRecord
from waybill.ojs.worker.eager_task import Ended
from waybill.ojs.worker.execution import Execution, Failure


class HookNotifier:
    """Creates the notifications of one worker's jobs."""

    def __init__(self, calls: HookCalls) -> None:
        self.hooks = calls.hooks
        self._calls = calls

    def start(self, execution: Execution) -> None:
        """An attempt is about to start."""
        moment = Moment(execution.envelope, execution.queue, execution.attempt, execution.context)
        self._calls.about(self.hooks.on_start, moment)

    def success(self, execution: Execution, result: object, duration_seconds: float) -> None:
        """A handler has returned."""
        moment = Moment(
            execution.envelope,
            execution.queue,
            execution.attempt,
            execution.context,
            result=result,
            duration_seconds=duration_seconds,
        )
        self._calls.about(self.hooks.on_success, moment)

    def failure(
        self, execution: Execution, failure: Failure, duration_seconds: float, error: BaseException | None
    ) -> None:
        """An attempt has failed."""
        if self.hooks.on_failure:
            moment = Moment(
                execution.envelope,
                execution.queue,
                execution.attempt,
                execution.context,
                duration_seconds=duration_seconds,
                error=failure.record,
                exception=error,
            )
            self._calls.about(self.hooks.on_failure, moment)

    def release(self, ended: Ended) -> None:
        """Forget the traceback of an error, unless a hook may read it later."""
        if not self.hooks.on_failure:
            ended.release()

    def retry(self, execution: Execution, failure: Failure, delay_seconds: float) -> None:
        """The next attempt is safe."""
        if self.hooks.on_retry:
            moment = Moment(
                execution.envelope,
                execution.queue,
                execution.attempt,
                execution.context,
                error=failure.record,
                retry_in_seconds=delay_seconds,
            )
            self._calls.about(self.hooks.on_retry, moment)

    def discard(self, queue: str, envelope: Envelope, attempt: int, record: ErrorRecord) -> None:
        """A job has ended without success."""
        if self.hooks.on_discard:
            self._calls.about(self.hooks.on_discard, Moment(envelope, queue, attempt, error=record))
