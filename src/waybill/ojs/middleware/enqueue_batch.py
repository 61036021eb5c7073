"""Runs the enqueue chain for the jobs of one push: each job in its own task, all published together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from waybill.ojs.errors import InvalidJob, PushFailed
from waybill.ojs.middleware.chain import Chain, Enqueue, EnqueueMiddleware
from waybill.ojs.push.new_envelope import stamp
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.spec.envelope import Envelope, validate

Outcome = Envelope | PushFailed
Publish = Callable[[dict[int, Envelope]], Awaitable[dict[int, Outcome]]]
"""Publishes the jobs with some indexes; returns each enqueued job, or the error."""

Enqueuing = Callable[[list[Outgoing], datetime], Awaitable[list[Outcome]]]
"""Enqueues the jobs that have passed the chain; returns the outcome of each, in order."""


class EnqueueBatch:
    """The jobs of one push in the chain."""

    def __init__(self, chain: Sequence[EnqueueMiddleware], publish: Publish) -> None:
        """`chain` is outermost first."""
        self._chain = chain
        self._publish = publish
        self._arrived: dict[int, Envelope] = {}
        self._futures: dict[int, asyncio.Future[Envelope]] = {}
        self._on_their_way = 0
        self._all_there = asyncio.Event()

    async def run(self, jobs: Sequence[Envelope]) -> list[Outcome | None]:
        """Return the result of the chain for each job: the job, None if it was dropped, or the error.

        Raises the errors of middleware before anything is published.
        """
        if not jobs:
            return []
        loop = asyncio.get_running_loop()
        self._on_their_way = len(jobs)
        tasks = [loop.create_task(self._go(index, job)) for index, job in enumerate(jobs)]
        try:
            await self._all_there.wait()
            for task in tasks:
                if task.done() and isinstance(error := task.exception(), Exception):
                    raise error
            for index, outcome in (await self._publish(self._arrived)).items():
                future = self._futures[index]
                if isinstance(outcome, PushFailed):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
            return [await _outcome(task) for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _go(self, index: int, job: Envelope) -> Envelope | None:
        """Run the chain for one job, and record when it has passed, was dropped or has failed."""
        call = self._innermost(index, job.id)
        for layer in reversed(self._chain):
            call = _wrap(layer, call)
        try:
            return await call(job)
        finally:
            if index not in self._futures:
                self._settled()

    def _innermost(self, index: int, job_id: str) -> Enqueue:
        async def enqueue(job: Envelope) -> Envelope | None:
            if job.id != job_id:
                raise InvalidJob("id", f"was {job_id} and was changed by a middleware to {job.id}")
            if index in self._futures:
                raise RuntimeError(f"a middleware has enqueued job {job_id} twice")
            self._arrived[index] = job
            future: asyncio.Future[Envelope] = asyncio.get_running_loop().create_future()
            self._futures[index] = future
            self._settled()
            return await future

        return enqueue

    def _settled(self) -> None:
        self._on_their_way -= 1
        if self._on_their_way == 0:
            self._all_there.set()


async def _outcome(task: asyncio.Task[Envelope | None]) -> Outcome | None:
    try:
        return await task
    except PushFailed as error:
        return error


def _wrap(layer: EnqueueMiddleware, inner: Enqueue) -> Enqueue:
    def call(job: Envelope) -> Awaitable[Envelope | None]:
        return layer(job, inner)

    return call


async def enqueue_through(
    chain: Chain[EnqueueMiddleware], made: list[Outgoing], now: datetime, enqueue: Enqueuing
) -> list[Outcome]:
    """Enqueue jobs through the chain, which is frozen meanwhile; the state of dropped jobs is None."""

    async def publish(arrived: dict[int, Envelope]) -> dict[int, Outcome]:
        for index, envelope in arrived.items():
            validate(envelope, now)
            stamp(envelope, now)
            made[index].envelope = envelope
            made[index].template = None
        outcomes = await enqueue([made[index] for index in arrived], now)
        return dict(zip(arrived, outcomes, strict=True))

    chain.freeze()
    try:
        outcomes = await EnqueueBatch(list(chain), publish).run([one.envelope for one in made])
    finally:
        chain.thaw()
    done: list[Outcome] = []
    for one, outcome in zip(made, outcomes, strict=True):
        if outcome is None:
            one.envelope.state = None
        done.append(one.envelope if outcome is None else outcome)
    return done
