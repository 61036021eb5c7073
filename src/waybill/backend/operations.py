"""Background operations on many jobs: cancel, retry or discard all jobs that match a filter, at a rate.

An operation ends with the server that runs it: changes made by then remain, and the same filter finds the rest. The
jobs are selected at the start.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.bulk import cancel, push_again, refusal_of
from waybill.backend.errors import RequestRefused
from waybill.backend.job_form import Form
from waybill.backend.job_query import JobQuery
from waybill.client import ClientError
from waybill.ojs.coordinator.markers import catch_up
from waybill.ojs.errors import InvalidJob, PushFailed
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.states import State

ACTIONS: Final = frozenset({"cancel", "retry", "discard"})
RUNNING: Final = "running"
STOPPING: Final = "stopping"
MOST_JOBS: Final = 100_000
MOST_RUNNING: Final = 4
MAX_KNOWN: Final = 50
PAGE: Final = 500
MAX_SEARCHED: Final = 20_000
AT_A_TIME: Final = 100
DEAD_AT_A_TIME: Final = 1000
"""Dead letters settled in one pass over their queue; with a rate, as many as fit into DEAD_SECONDS."""
DEAD_SECONDS: Final = 10.0
_STATES: Final = {
    "cancel": "available,scheduled,retryable,pending,active",
    "retry": State.DISCARDED.value,
    "discard": State.DISCARDED.value,
}

_log = logging.getLogger("waybill.backend")


class BulkOperation(msgspec.Struct):
    """An operation: running, stopping, done, stopped or failed. `rate` is jobs per second, 0 for no limit."""

    id: str
    action: str
    filter: dict[str, object]
    rate: float
    actor: str
    started_at: str
    matched: int
    has_more: bool = False
    state: str = RUNNING
    done: int = 0
    failed: int = 0
    ended_at: str | None = None
    error: str | None = None
    tenant: str = ""


class _Stopped(Exception):
    """The operation was stopped."""


class Operations:
    """The running operations of one server, and the last ones that have ended."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[str, BulkOperation] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Stop all operations."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def all(self, tenant: str = "") -> list[BulkOperation]:
        """Return the operations of a tenant, or all, newest first."""
        return [one for one in reversed(self._known.values()) if tenant in {"", one.tenant}]

    def get(self, operation_id: str, tenant: str = "") -> BulkOperation | None:
        """Return an operation, None if it is unknown."""
        found = self._known.get(operation_id)
        return found if found is not None and tenant in {"", found.tenant} else None

    def stop(self, operation: BulkOperation) -> None:
        """Stop an operation."""
        if operation.state == RUNNING:
            operation.state = STOPPING

    async def choose(self, action: str, given: Form, prefix: str) -> tuple[list[Form], bool]:
        """Return the jobs of an operation, and whether there are more than the limit. Raises RequestRefused."""
        query = JobQuery.read({"state": _STATES[action], **{name: one for name, one in given.items() if one}}, prefix)
        found: list[Form] = []
        cursor, view = "", self._backend.view
        while True:
            jobs, cursor = await view.read(
                lambda store, before=cursor: store.search(query.wanted, before, PAGE, MAX_SEARCHED)  # type: ignore[misc]
            )
            chosen = (form for form in query.forms(jobs) if not refusal_of(_CHECKED_ACTIONS[action], form))
            found += [{"id": form["id"], "queue": form["queue"], "state": form["state"]} for form in chosen]
            if not cursor or len(found) > MOST_JOBS:
                return found[:MOST_JOBS], len(found) > MOST_JOBS

    async def begin(self, operation: BulkOperation, jobs: list[Form]) -> None:
        """Start an operation. Raises RequestRefused if too many are running."""
        if len(self._tasks) >= MOST_RUNNING:
            raise RequestRefused(
                "conflict", f"{MOST_RUNNING} operations are already running: wait for one to end, or stop one."
            )
        self._known[operation.id] = operation
        while len(self._known) > MAX_KNOWN:
            ended = next((one.id for one in self._known.values() if one.id not in self._tasks), None)
            if ended is None:
                break
            del self._known[ended]
        self._tasks[operation.id] = asyncio.get_running_loop().create_task(self._run(operation, jobs))

    def make(self, action: str, given: Form, rate: float, actor: str, tenant: str) -> BulkOperation:
        """Return an operation that has not started."""
        return BulkOperation(new_id(), action, given, rate, actor, self._backend.now(), 0, tenant=tenant)

    # --- running an operation ---

    async def _run(self, operation: BulkOperation, jobs: list[Form]) -> None:
        try:
            await (self._cancel(operation, jobs) if operation.action == "cancel" else self._settle(operation, jobs))
            operation.state = "done" if operation.state == RUNNING else "stopped"
        except _Stopped:
            operation.state = "stopped"
        except asyncio.CancelledError:
            operation.state = "stopped"
            raise
        except (ClientError, InvalidJob, PushFailed, TimeoutError) as error:
            operation.state, operation.error = "failed", str(error) or type(error).__name__
        except Exception:  # noqa: BLE001 - clients wait for the end of the operation
            _log.exception("operation %s failed", operation.id)
            operation.state, operation.error = "failed", "See the log of the server."
        finally:
            operation.ended_at = self._backend.now()
            self._tasks.pop(operation.id, None)

    async def _cancel(self, operation: BulkOperation, jobs: Sequence[Form]) -> None:
        async def change(part: Sequence[Form]) -> int:
            return len(await cancel(self._backend, part))

        await self._pace(operation, jobs, change)

    async def _pace(
        self, operation: BulkOperation, jobs: Sequence[Form], change: Callable[[Sequence[Form]], Awaitable[int]]
    ) -> None:
        """Change jobs some at a time, at the operation's rate; `change` returns how many it could not change."""
        loop = asyncio.get_running_loop()
        began, size = loop.time(), AT_A_TIME
        if operation.rate:
            size = max(1, min(AT_A_TIME, int(operation.rate)))
        for start in range(0, len(jobs), size):
            _check_running(operation)
            part = jobs[start : start + size]
            failed = await change(part)
            operation.done += len(part) - failed
            operation.failed += failed
            if operation.rate:
                await asyncio.sleep(max(0.0, began + (start + len(part)) / operation.rate - loop.time()))

    async def _settle(self, operation: BulkOperation, jobs: Sequence[Form]) -> None:
        """Settle dead letters, queue by queue; push jobs again that are not dead letters."""
        by_queue: defaultdict[str, list[Form]] = defaultdict(list)
        for form in jobs:
            by_queue[str(form["queue"])].append(form)
        size = DEAD_AT_A_TIME
        if operation.rate:
            size = max(1, min(DEAD_AT_A_TIME, int(operation.rate * DEAD_SECONDS)))
        for queue, several in by_queue.items():
            for start in range(0, len(several), size):
                _check_running(operation)
                await self._settle_some(operation, queue, [str(form["id"]) for form in several[start : start + size]])

    async def _settle_some(self, operation: BulkOperation, queue: str, ids: list[str]) -> None:
        before = operation.done

        def count(done: int) -> None:
            operation.done = before + done
            _check_running(operation)

        rate = operation.rate or None
        backend = self._backend
        async with backend.dead_letters(queue) as dead:
            if operation.action == "discard":
                settled = await dead.discard(ids, rate=rate, on_progress=count)
            else:
                settled = await dead.retry(ids, rate=rate, on_progress=count)
        left = len(ids) - settled
        if not left or operation.action == "discard":
            operation.failed += left
            return
        await catch_up(backend.view, backend.broker.events)
        known = await backend.view.many(ids)
        missing: list[Form] = [{"id": one.id} for one in known if one.state == State.DISCARDED.value]

        async def push(part: Sequence[Form]) -> int:
            return sum([bool(await push_again(backend, str(form["id"]))) for form in part])

        await self._pace(operation, missing, push)


_CHECKED_ACTIONS: Final = {"cancel": "cancel", "retry": "retry", "discard": "retry"}


def _check_running(operation: BulkOperation) -> None:
    if operation.state != RUNNING:
        raise _Stopped
