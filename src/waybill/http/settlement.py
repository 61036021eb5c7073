"""Reports the outcome of a fetched job until the server has answered: ack, nack or requeue.

A job is held from its fetch until the server has answered its outcome; heartbeats extend its lease meanwhile. A
response 409 means that the lease has ended: another worker has the job, or it has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from waybill.client import Delivery
from waybill.http.control import HttpControl
from waybill.http.errors import NoAnswer, RequestRefused
from waybill.http.events import HttpBroker
from waybill.http.job_form import Form
from waybill.http.push import AGAIN
from waybill.ojs.errors import InvalidJob, ResponseCode
from waybill.ojs.hooks import HookCalls
from waybill.ojs.spec.envelope import Envelope, ErrorRecord
from waybill.ojs.spec.nesting import clean_text, shown
from waybill.ojs.worker.attempt_ends import delay_of, encoded_result, gets_another, log_failure, placeholder_of
from waybill.ojs.worker.execution import Execution, Failure
from waybill.ojs.worker.hook_notifier import HookNotifier
from waybill.ojs.worker.settlement import MAX_REASON, Settlement
from waybill.ojs.worker.unique_ends import UniqueEnds

TELL_SECONDS: Final = 300.0
"""How long the end of a job is reported to a server that does not answer."""

_ACK: Final = "/ojs/v1/workers/ack"
_NACK: Final = "/ojs/v1/workers/nack"
_DISCARDED: Final = "discarded"

_log = logging.getLogger("waybill.ojs.worker")


class Held:
    """A job that this worker has from the server."""

    def __init__(self, delivery: Delivery, queue: str, attempt: int) -> None:
        self.delivery = delivery
        self.queue = queue
        self.attempt = attempt
        self.is_settling = False


class _NoPlaces(UniqueEnds):
    """The server frees the places of unique jobs, and gives out no job that has lost its place."""

    def __init__(self) -> None:
        """No coordinator can be asked."""


class HttpSettlement(Settlement):
    """Settles the jobs of one worker."""

    def __init__(
        self, control: HttpControl, broker: HttpBroker, worker_id: str, hooks: HookCalls, on_change: Callable[[], None]
    ) -> None:
        """`on_change` is called when there may be room for another job."""
        self.held: dict[str, Held] = {}
        self.completed_count = 0
        self.failed_count = 0
        self.retried_count = 0
        self.discarded_count = 0
        self.cancelled_count = 0
        self.unique = _NoPlaces()
        self._requests = control
        self._reports = broker.reports
        self._worker_id = worker_id
        self._hook_notifier = HookNotifier(hooks)
        self._on_change = on_change
        self._telling: set[asyncio.Task[None]] = set()

    def completed(
        self,
        execution: Execution,
        result: object,
        duration_seconds: float,
        started_at: str | None = None,
        worker_id: str = "",
    ) -> None:
        """Report a success."""
        encoded = None if result is None else encoded_result(execution, result)[0]
        self.completed_count += 1
        if self._hook_notifier.hooks.on_success:
            self._hook_notifier.success(execution, result, duration_seconds)
        self._reports.counters.durations[execution.envelope.type].add(duration_seconds)
        body: Form = {} if encoded is None else {"result": msgspec.Raw(encoded)}
        self._say_of(execution, _ACK, body)

    def failed(
        self,
        execution: Execution,
        failure: Failure,
        duration_seconds: float,
        error: BaseException | None = None,
        delay: float | None = None,
    ) -> None:
        """Report a failure: the server decides about a retry, unless the handler did."""
        failure.record.retryable = again = gets_another(execution, failure)
        self.failed_count += 1
        if execution.handler is not None:
            self._reports.counters.durations[execution.envelope.type].add(duration_seconds)
        log_failure(_log, execution, failure, delay_of(execution) if again else None, error)
        self._hook_notifier.failure(execution, failure, duration_seconds, error)
        body: Form = {"error": _error_of(failure.record, failure.response)}

        def answered(answer: Form) -> None:
            delay_ms = answer.get("retry_delay_ms")
            if answer.get("state") != _DISCARDED:
                self.retried_count += 1
                self._hook_notifier.retry(
                    execution, failure, delay_ms / 1000 if isinstance(delay_ms, int | float) else 0.0
                )
            else:
                self._discarded(execution.queue, execution.envelope, execution.attempt, failure.record)

        self._say_of(execution, _NACK, body, answered)

    def cancelled(self, execution: Execution, *, waited: bool = False) -> None:
        """Drop a cancelled job: the server knows."""
        self.cancelled_count += 1
        self._release(execution.delivery)

    def replaced(self, execution: Execution) -> None:
        """Drop an attempt whose lease has ended: its outcome no longer counts."""
        _log.warning("attempt %d of job %s was replaced", execution.attempt, shown(execution.envelope.id))
        self._release(execution.delivery)

    def settled_before(self, execution: Execution) -> bool:
        """Return False: a redelivery is always another attempt, with its own lease."""
        return False

    def expired(self, execution: Execution, now: datetime) -> None:
        """Report a job whose deadline passed before it could start."""
        text = f"it expired at {execution.envelope.expires_at}"
        self._give_up(execution.delivery, execution.queue, execution.envelope, "Expired", "JOB_EXPIRED", text)

    def unreadable(self, delivery: Delivery, queue: str, error: InvalidJob) -> None:
        """Report an invalid job."""
        self._reports.counters.skipped["job"] += 1
        _log.error("a job of %s is invalid: %s", queue, clean_text(str(error), MAX_REASON))
        placeholder, _ = placeholder_of(delivery, queue)
        self._give_up(delivery, queue, placeholder, "InvalidJob", error.code, str(error))

    def abandon(self, delivery: Delivery, queue: str, error: BaseException) -> None:
        """Report a job after an unexpected error."""
        self._reports.counters.skipped["job"] += 1
        _log.error("a job of %s cannot be settled", queue, exc_info=error)
        placeholder, _ = placeholder_of(delivery, queue)
        text = f"it could not be settled: {type(error).__name__}"
        self._give_up(delivery, queue, placeholder, type(error).__name__, "INTERNAL_ERROR", text)

    def unknown_type(self, execution: Execution) -> None:
        """Report a job without a handler here."""
        envelope = execution.envelope
        _log.error("job %s has no handler for its type %s", shown(envelope.id), shown(envelope.type))
        text = f"no handler for {envelope.type}"
        self._give_up(execution.delivery, execution.queue, envelope, "UnknownJobType", "INVALID_JOB_TYPE", text)

    def postponed(self, execution: Execution, seconds: float) -> None:
        """Requeue an attempt that must start later."""
        delay_ms = round(min(max(seconds, 0.0), 1e9) * 1000) if seconds == seconds else 0  # noqa: PLR0124 - not NaN
        self._say_of(execution, _NACK, {"requeue": True, "delay_ms": delay_ms})

    def hand_back(self, delivery: Delivery, queue: str) -> None:
        """Return a job that was never started."""
        self._say(delivery, queue, _NACK, {"requeue": True})

    def forget(self, held: Held) -> None:
        """Drop a job whose lease the server has ended, without a report."""
        self._release(held.delivery)

    async def drain(self, timeout_seconds: float) -> bool:
        """Wait until the server has all reports; False if that takes longer."""
        if self._telling:
            await asyncio.wait(set(self._telling), timeout=timeout_seconds)
        return not self._telling

    # --- reporting ---

    def _give_up(self, delivery: Delivery, queue: str, envelope: Envelope, kind: str, code: str, text: str) -> None:
        record = ErrorRecord(type=kind, message=clean_text(text, MAX_REASON), code=code)
        body: Form = {"error": _error_of(record, ResponseCode.DEAD_LETTER)}
        self._say(delivery, queue, _NACK, body, lambda _: self._discarded(queue, envelope, 0, record))

    def _discarded(self, queue: str, envelope: Envelope, attempt: int, record: ErrorRecord) -> None:
        self.discarded_count += 1
        self._hook_notifier.discard(queue, envelope, attempt, record)

    def _say_of(
        self, execution: Execution, path: str, body: Form, answered: Callable[[Form], None] | None = None
    ) -> None:
        self._say(execution.delivery, execution.queue, path, body, answered)

    def _say(
        self, delivery: Delivery, queue: str, path: str, body: Form, answered: Callable[[Form], None] | None = None
    ) -> None:
        held = self.held.get(job_id_of(delivery))
        if held is None or held.delivery is not delivery:
            # The server has given out its next attempt meanwhile.
            self._on_change()
            return
        held.is_settling = True
        message = {"job_id": job_id_of(delivery), "worker_id": self._worker_id, "attempt": held.attempt, **body}
        task = asyncio.get_running_loop().create_task(self._send(delivery, queue, path, message, answered))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        self._on_change()

    async def _send(
        self, delivery: Delivery, queue: str, path: str, message: Form, answered: Callable[[Form], None] | None
    ) -> None:
        job_id = job_id_of(delivery)
        try:
            await self._reports.told(job_id)
            answer = await self._told_at_last(path, message)
        except (NoAnswer, RequestRefused) as error:
            _log.warning("the server rejected the outcome of job %s: %s", shown(job_id), error)
        except Exception:  # noqa: BLE001 - the place of the job must be free again
            _log.exception("the outcome of job %s could not be sent", shown(job_id))
        else:
            (self._reports.counters.acked if path == _ACK else self._reports.counters.nacked)[queue] += 1
            if answered is not None:
                answered(answer)
        finally:
            self._release(delivery)

    async def _told_at_last(self, path: str, message: Form) -> Form:
        """Send a message until there is an answer. Raises NoAnswer, RequestRefused."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TELL_SECONDS
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._requests.request("POST", path, message)
            except (NoAnswer, RequestRefused) as error:
                delay = AGAIN.delay_s(attempt)
                if isinstance(error, RequestRefused):
                    if not error.is_retryable:
                        raise
                    delay = max(delay, error.retry_after)
                if loop.time() + delay >= deadline:
                    raise
            await asyncio.sleep(delay)

    def _release(self, delivery: Delivery) -> None:
        job_id = job_id_of(delivery)
        held = self.held.get(job_id)
        if held is not None and held.delivery is delivery:
            del self.held[job_id]
            self._reports.counters.unacked[held.queue] -= 1
        self._on_change()


def job_id_of(delivery: Delivery) -> str:
    """Return the id of a fetched job: it stands where a consumer's tag would."""
    return delivery.consumer_tag


def _error_of(record: ErrorRecord, response: ResponseCode) -> Form:
    """Return an error as a nack has it (ojs-http-binding section 10.3)."""
    error: Form = {"code": record.code, "type": record.type, "message": record.message}
    if response is not ResponseCode.RETRY:
        error["retryable"] = False
    if record.backtrace is not None:
        error["backtrace"] = record.backtrace
    if record.details is not None:
        error["details"] = record.details
    return error
