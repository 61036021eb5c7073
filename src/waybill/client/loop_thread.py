"""An event loop on its own thread, for callers without one."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from waybill.client.errors import ConnectionClosed
from waybill.transport.loop import new_event_loop

T = TypeVar("T")


class LoopThread:
    """Runs coroutines on its loop until it is stopped. Any number of threads may call."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        # Work is submitted before the loop stops, which then cancels it, or it is refused.
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="waybill-client", daemon=True)
        self._thread.start()

    @property
    def stopped(self) -> bool:
        """Whether it accepts no more work."""
        return self._stopped

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop. Returns its result, or raises its exception. An interrupted caller cancels it.

        Raises ConnectionClosed if the loop is stopped, before or meanwhile, and RuntimeError on the loop's own thread.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback on the client's own thread cannot wait for the client")
        call = _Call(self.loop, work)
        with self._lock:
            if self._stopped:
                work.close()
                raise ConnectionClosed("the connection is closed")
            self.loop.call_soon_threadsafe(call.begin)
        try:
            return call.result()
        except asyncio.CancelledError:
            if self._stopped:
                raise ConnectionClosed("the connection was closed by another thread") from None
            raise concurrent.futures.CancelledError from None
        except KeyboardInterrupt:
            self.soon(call.cancel)
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin to run `work` on the loop, for `result`. Raises ConnectionClosed if the loop is stopped."""
        with self._lock:
            if self._stopped:
                work.close()
                raise ConnectionClosed("the connection is closed")
            return asyncio.run_coroutine_threadsafe(work, self.loop)

    def result(self, future: concurrent.futures.Future[T]) -> T:
        """Wait for a result of `start`; see `call`."""
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if self._stopped:
                raise ConnectionClosed("the connection was closed by another thread") from None
            raise
        except KeyboardInterrupt:
            future.cancel()
            raise

    def soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call on the loop without waiting; do nothing once it is stopped."""
        with self._lock:
            if not self._stopped:
                self.loop.call_soon_threadsafe(callback, *arguments)

    def stop(self) -> None:
        """Stop the loop and its thread, and cancel what runs there. A second call does nothing."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(_cancel_all())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()


class _Call(Generic[T]):
    """Work that another thread waits for, cheaper than a future of `concurrent.futures`."""

    __slots__ = ("_is_over", "_loop", "_task", "_work")

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._is_over = threading.Lock()
        self._is_over.acquire()

    def begin(self) -> None:
        """On the loop."""
        self._task = task = self._loop.create_task(self._work)
        task.add_done_callback(lambda _: self._is_over.release())

    def cancel(self) -> None:
        """On the loop: cancel, since nothing waits for the result."""
        if self._task is not None:
            self._task.cancel()

    def result(self) -> T:
        """On the thread that waits."""
        self._is_over.acquire()
        if self._task is None:
            raise asyncio.CancelledError
        return self._task.result()


async def _cancel_all() -> None:
    """Cancel what still runs, which wakes the threads that wait for it."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
