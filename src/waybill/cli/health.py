"""Health probes of a worker or a coordinator: live and ready.

`/live` answers 200 while the event loop responds, `/ready` while new jobs reach the worker and running jobs end, or
while the coordinator reads events and requests. They are served in a thread, so that a blocked loop causes a 503 and
not a timeout.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import click

from waybill.ojs import Coordinator, Worker

ANSWER_SECONDS: Final = 2.0
"""How long the loop may take to answer."""
DATABASE_SECONDS: Final = 1.0

State = dict[str, object]
Look = Callable[[], Coroutine[Any, Any, tuple[State, bool]]]
"""Returns a state, and whether it is ready."""


async def look_at_worker(worker: Worker) -> tuple[State, bool]:
    """Return the state of a worker, and whether jobs reach it and end."""
    connection, starvation = worker.connection, worker.starvation
    state: State = {
        "consuming": worker.is_consuming,
        "connected": connection is not None and connection.is_open,
        "queues": worker.consumed_queues,
        "paused": sorted(worker.paused_queues),
        "refused": worker.refused_queues,
        "running": worker.running_count,
        "starvation": starvation,
    }
    return state, worker.is_consuming and starvation is None


async def look_at_coordinator(coordinator: Coordinator) -> tuple[State, bool]:
    """Return the state of a coordinator, and whether it can do its work."""
    problem = await coordinator.problem(DATABASE_SECONDS)
    state: State = {
        "connected": coordinator.is_connected,
        "lag_seconds": {one.stream: one.seconds for one in coordinator.lags()},
        "problem": problem,
    }
    return state, problem is None


class _Probe(BaseHTTPRequestHandler):
    """Answers GET /live and GET /ready with the state as JSON."""

    ask: Callable[[], tuple[State, bool] | None]
    timeout = 10

    def do_GET(self) -> None:
        if self.path not in {"/live", "/ready"}:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        state, is_ready = type(self).ask() or (None, False)
        is_well = state is not None and (self.path == "/live" or is_ready)
        body = json.dumps(state or {"error": "the event loop does not respond"}).encode() + b"\n"
        self.send_response(HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class names it
        """Log nothing: probes come every few seconds."""


@contextlib.contextmanager
def serve_health(look: Look, host: str, port: int) -> Iterator[int]:
    """Serve probes for the running loop; yields the port. Raises click.ClickException."""
    loop = asyncio.get_running_loop()

    def ask() -> tuple[State, bool] | None:
        looking = look()
        try:
            answer = asyncio.run_coroutine_threadsafe(looking, loop)
        except RuntimeError:
            # The loop is closed.
            looking.close()
            return None
        try:
            return answer.result(ANSWER_SECONDS)
        except TimeoutError:
            answer.cancel()
            return None

    probe = type("Probe", (_Probe,), {"ask": staticmethod(ask)})
    try:
        server = ThreadingHTTPServer((host, port), probe)
    except OSError as error:
        raise click.ClickException(f"{host}:{port}: {error}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="waybill-health", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
