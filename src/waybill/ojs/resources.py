"""Resources of handlers: created when a worker starts, shared by its jobs, closed when it stops.

    @asynccontextmanager
    async def database() -> AsyncGenerator[Database, None]:
        async with connect() as connection:
            yield connection

    @jobs.handler("invoice.send")
    async def send_invoice(number: int, *, db: Database = resource(database)) -> None: ...

Keyword-only parameters are not part of a job: `push` takes `number`, a test calls `send_invoice(1, db=fake)`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar, cast, overload

T = TypeVar("T")

Factory = Callable[..., object]


class Wanted:
    """The default of a parameter that a worker fills."""

    def __init__(self, factory: Factory) -> None:
        self.factory = factory


@overload
def resource(factory: Callable[..., AbstractAsyncContextManager[T, Any]]) -> T: ...
@overload
def resource(factory: Callable[..., AbstractContextManager[T, Any]]) -> T: ...
@overload
def resource(factory: Callable[..., Awaitable[T]]) -> T: ...
@overload
def resource(factory: Callable[..., T]) -> T: ...
def resource(factory: Callable[..., Any]) -> Any:
    """Inject a resource into a keyword-only parameter of a handler; `factory` creates it once per worker.

    `factory` returns a synchronous or asynchronous context manager, which is entered when the worker starts and exited
    after its last job; an awaitable; or the resource itself. It may have resources in the same way. Handlers in
    processes have their own resources, which cannot be asynchronous.
    """
    return Wanted(factory)


def wanted_by(function: Factory) -> dict[str, Factory]:
    """Return the factories of a function's parameters."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        # Some built-in functions have no signature.
        return {}
    return {one.name: one.default.factory for one in parameters if isinstance(one.default, Wanted)}


class Resources:
    """The resources of a worker."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._made: dict[Factory, object] = {}

    @property
    def has_any(self) -> bool:
        """Whether there are resources to close."""
        return bool(self._made)

    def has_all(self, function: Factory) -> bool:
        """Whether all resources of a function exist."""
        return all(factory in self._made for factory in wanted_by(function).values())

    async def open(self, function: Factory) -> None:
        """Create missing resources of a function. Raises the errors of the factories."""
        for factory in wanted_by(function).values():
            await self._make(factory)

    def bind(self, function: Factory) -> Factory:
        """Return the function with its resources bound."""
        filled = {name: self._made[factory] for name, factory in wanted_by(function).items()}
        return functools.partial(function, **filled) if filled else function

    async def close(self) -> None:
        """Exit all context managers, the last one first."""
        self._made.clear()
        await self._stack.aclose()

    async def _make(self, factory: Factory) -> object:
        if factory not in self._made:
            inner = {name: await self._make(one) for name, one in wanted_by(factory).items()}
            made = factory(**inner)
            if isinstance(made, AbstractAsyncContextManager):
                made = await self._stack.enter_async_context(made)
            elif isinstance(made, AbstractContextManager):
                made = self._stack.enter_context(made)
            elif inspect.isawaitable(made):
                made = await made
            self._made[factory] = made
        return self._made[factory]


class ProcessResources:
    """The resources of a process for CPU-bound jobs: created for the first job that needs them."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._made: dict[Factory, object] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Exit all context managers, the last one first."""
        self._stack.close()

    def bind(self, function: Factory) -> Factory:
        """Return the function with its resources bound. Raises TypeError for asynchronous resources."""
        filled = {name: self._make(factory) for name, factory in wanted_by(function).items()}
        return functools.partial(function, **filled) if filled else function

    def _make(self, factory: Factory) -> object:
        if factory not in self._made:
            made = factory(**{name: self._make(one) for name, one in wanted_by(factory).items()})
            if isinstance(made, AbstractAsyncContextManager) or inspect.isawaitable(made):
                if inspect.iscoroutine(made):
                    made.close()
                raise TypeError(f"{factory} is asynchronous: a handler in a process cannot use it")
            if isinstance(made, AbstractContextManager):
                made = self._stack.enter_context(cast("AbstractContextManager[object]", made))
            self._made[factory] = made
        return self._made[factory]
