"""The rows of an outbox, independent of the database library: jobs as text, and pushing them in order."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Final, cast

import msgspec

from waybill.client import ClientError, EncodeError
from waybill.ojs.errors import InvalidJob, PushFailed
from waybill.ojs.handler import MadeJob, Options
from waybill.ojs.push.publisher import BatchFailed
from waybill.ojs.spec.envelope import parse_envelope
from waybill.ojs.spec.nesting import clean_text

BATCH: Final = 500
MAX_FAILURES: Final = 5
MAX_REASON: Final = 2000
_KEPT_OPTIONS: Final = frozenset({"unique_key", "correlation_id", "traceparent", "tracestate"})

PushMany = Callable[[list[MadeJob]], Awaitable[object]]
"""`Jobs.push_many`."""

_log = logging.getLogger("waybill.ojs.outbox")


def row_of(made: MadeJob) -> tuple[str, str, str]:
    """Return the id, the envelope and the options of a job as text."""
    options = {key: value for key, value in made.options.items() if key in _KEPT_OPTIONS}
    # If the broker deduplicates, a job that was published twice because of a crash is in its queue once.
    options.setdefault("unique_key", made.envelope.id)
    return made.envelope.id, made.envelope.encode().decode(), msgspec.json.encode(options).decode()


class OutboxPublisher:
    """Pushes rows: number, envelope, options."""

    def __init__(self) -> None:
        self.after = 0
        """The next BATCH rows to push are those after this number: rows that stay do not hold up the others."""
        self._has_left_rows = False
        self._failures: Counter[int] = Counter()
        """How often the job of a row has failed while others succeeded."""

    async def publish(self, rows: Sequence[tuple[int, str, str]], push: PushMany) -> tuple[list[int], dict[int, str]]:
        """Push in order; return the rows whose jobs the broker has, and the reasons of those that can never be pushed.

        Raises PushFailed if the broker accepted none.
        """
        done: list[int] = []
        errors: dict[int, str] = {}
        try:
            done, errors = await self._publish([(number, _made(job, options)) for number, job, options in rows], push)
        finally:
            self._has_left_rows |= len(done) + len(errors) < len(rows)
            if len(rows) < BATCH:
                self.begin_again()
            elif self._has_left_rows:
                self.after = rows[-1][0]
        return done, errors

    def begin_again(self) -> None:
        """Note that there are no rows after the last ones."""
        self.after, self._has_left_rows = 0, False

    async def _publish(
        self, jobs: list[tuple[int, MadeJob | InvalidJob]], push: PushMany
    ) -> tuple[list[int], dict[int, str]]:
        errors = {number: clean_text(str(job), MAX_REASON) for number, job in jobs if isinstance(job, InvalidJob)}
        good = [(number, job) for number, job in jobs if isinstance(job, MadeJob)]
        failed: set[str] = set()
        if not good:
            return [], errors
        try:
            await push([job for _, job in good])
        except BatchFailed as error:
            failed = {failure.job_id for failure in error.failures}
            if len(failed) == len(good):
                raise error.failures[0] from error
            _log.warning("%d jobs could not be pushed and stay in the outbox: %s", len(failed), error.failures[0])
        except (InvalidJob, EncodeError, RecursionError) as error:
            if len(good) == 1:
                _log.exception("job %s of the outbox is invalid and cannot be enqueued", good[0][1].envelope.id)
                return [], {**errors, good[0][0]: clean_text(str(error), MAX_REASON)}
            return await self._publish_one_by_one(good, errors, push)
        except (ClientError, OSError, PushFailed):
            raise
        except Exception:
            if len(good) == 1:
                raise
            # A middleware fails, for one of them or for all.
            return await self._publish_one_by_one(good, errors, push)
        return [number for number, job in good if job.envelope.id not in failed], errors

    async def _publish_one_by_one(
        self, jobs: list[tuple[int, MadeJob]], errors: dict[int, str], push: PushMany
    ) -> tuple[list[int], dict[int, str]]:
        """Find the job that fails a batch.

        A job with a failure that may be temporary stays in the outbox. After MAX_FAILURES failures while others
        succeeded, it counts as invalid, so that it does not block the outbox forever. Raises that failure if no job
        succeeds.
        """
        done: list[int] = []
        failed: dict[int, Exception] = {}
        for one in jobs:
            try:
                published, spoilt = await self._publish([one], push)
            except (ClientError, OSError, PushFailed):
                raise
            except Exception as error:  # noqa: BLE001 - whatever a middleware can raise
                failed[one[0]] = error
                continue
            done += published
            errors |= spoilt
        if failed and not done and not errors:
            raise next(iter(failed.values()))
        for number, failure in failed.items():
            self._failures[number] += 1
            _log.error("row %d of the outbox could not be pushed, trying again later", number, exc_info=failure)
            if self._failures[number] >= MAX_FAILURES:
                del self._failures[number]
                errors[number] = f"{type(failure).__name__} repeatedly"
        return done, errors


def _made(envelope: str, options: str) -> MadeJob | InvalidJob:
    try:
        # Its deadline may have passed by now: the worker handles that.
        job = parse_envelope(envelope.encode(), datetime.now(UTC))
        return MadeJob(job, cast("Options", msgspec.json.decode(options, type=dict[str, str])))
    except InvalidJob as error:
        return error
    except Exception as error:  # noqa: BLE001 - a row is what somebody has written
        return InvalidJob("row", f"cannot be read: {type(error).__name__}")
