"""The two chains of middleware (ojs-middleware.md): around the enqueuing of a job, and around its execution.

    async def timing(job: JobContext, call: Call) -> object:
        started = monotonic()
        try:
            return await call(job)
        finally:
            print(job.type, monotonic() - started)

    async def tagging(job: Envelope, call: Enqueue) -> Envelope | None:
        job.tags.append("from-the-shop")
        return await call(job)

The first one of a chain is the outermost. Middleware that catches an error must raise it again, or the job counts as
completed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from types import MethodType
from typing import Generic, TypeVar

from waybill.ojs.job_context import JobContext
from waybill.ojs.spec.envelope import Envelope

Call = Callable[[JobContext], Awaitable[object]]
Middleware = Callable[[JobContext, Call], Awaitable[object]]
"""Wraps an execution: gets the job and the inner call; returns the result of the job."""

Enqueue = Callable[[Envelope], Awaitable[Envelope | None]]
EnqueueMiddleware = Callable[[Envelope, Enqueue], Awaitable[Envelope | None]]
"""Wraps an enqueuing: returns what `call` returns, or None without calling it, which drops the job.

It may change any field of the job except `id`. `call` returns after the broker has confirmed the job. The jobs of one
`push_many` are published together after all of them have passed the chain, so do not hold anything that another job of
the same call needs while awaiting `call`.
"""

T = TypeVar("T")


class JobMiddleware:
    """The base class of middleware for both chains; `Jobs.use` adds the methods that a class overrides."""

    def prepare(self, job: Envelope) -> None:
        """Record context in a job that is enqueued later, maybe by another process: by an outbox."""

    async def enqueue(self, job: Envelope, call: Enqueue) -> Envelope | None:
        """Wrap the enqueuing of a job."""
        return await call(job)

    async def execute(self, job: JobContext, call: Call) -> object:
        """Wrap one attempt of a job."""
        return await call(job)


class Chain(Generic[T]):
    """An ordered chain. It is frozen while jobs pass through it: changing it then raises RuntimeError.

    Members are identified by the object or its class; the first match counts.
    """

    def __init__(self, members: Iterable[T] = ()) -> None:
        """`members` are the first ones, outermost first."""
        self._members = list(members)
        self._users = 0

    def __iter__(self) -> Iterator[T]:
        """Iterate over the members, outermost first."""
        return iter(tuple(self._members))

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: T) -> None:
        """Add a member innermost."""
        self._insert(len(self._members), member)

    def prepend(self, member: T) -> None:
        """Add a member outermost."""
        self._insert(0, member)

    def insert_before(self, existing: object, member: T) -> None:
        """Add a member directly outside another one. Raises LookupError if that is not in the chain."""
        self._insert(self._index(existing), member)

    def insert_after(self, existing: object, member: T) -> None:
        """Add a member directly inside another one. Raises LookupError if that is not in the chain."""
        self._insert(self._index(existing) + 1, member)

    def remove(self, existing: object) -> None:
        """Remove a member. Raises LookupError if it is not in the chain."""
        self._check_thawed()
        del self._members[self._index(existing)]

    def freeze(self) -> None:
        """Forbid changes until `thaw` was called as many times."""
        self._users += 1

    def thaw(self) -> None:
        """End one `freeze`."""
        self._users -= 1

    def _insert(self, index: int, member: T) -> None:
        self._check_thawed()
        self._members.insert(index, member)

    def _check_thawed(self) -> None:
        if self._users:
            raise RuntimeError("a middleware chain cannot be changed while jobs pass through it")

    def _index(self, existing: object) -> int:
        for index, member in enumerate(self._members):
            # Members may be bound methods of a JobMiddleware, which are also identified by their object.
            candidates = [member, *([member.__self__] if isinstance(member, MethodType) else [])]
            if any(one is existing or one == existing for one in candidates):
                return index
            if isinstance(existing, type) and any(isinstance(one, existing) for one in candidates):
                return index
        raise LookupError(f"{existing!r} is not in the chain")


def overrides(middleware: JobMiddleware, side: str) -> bool:
    """Return whether a middleware class overrides `enqueue` or `execute`."""
    return getattr(type(middleware), side) is not getattr(JobMiddleware, side)


def compose(middleware: Sequence[Middleware], innermost: Call) -> Call:
    """Wrap `innermost` so that the first middleware is the outermost. Called once per handler, not per job."""
    call = innermost
    for layer in reversed(middleware):
        call = _wrap(layer, call)
    return call


def _wrap(layer: Middleware, inner: Call) -> Call:
    def call(job: JobContext) -> Awaitable[object]:
        return layer(job, inner)

    return call
