"""Health probes of a worker: live and ready.

`/live` answers 200 while the event loop responds, `/ready` while new jobs reach the worker and running jobs end. They
are served in a thread, so that a blocked loop causes a 503 and not a timeout.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import click

from waybill.ojs import Worker

ANSWER_SECONDS: Final = 2.0
"""How long the loop may take to answer."""


def _state(worker: Worker) -> dict[str, object]:
    connection = worker.connection
    return {
        "consuming": worker.is_consuming,
        "connected": connection is not None and connection.is_open,
        "queues": worker.consumed_queues,
        "paused": sorted(worker.paused_queues),
        "refused": worker.refused_queues,
        "running": worker.running_count,
        "starvation": worker.starvation,
    }


class _Probe(BaseHTTPRequestHandler):
    """Answers GET /live and GET /ready with the state of the worker as JSON."""

    ask: Callable[[], dict[str, object] | None]
    timeout = 10

    def do_GET(self) -> None:
        if self.path not in {"/live", "/ready"}:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        state = type(self).ask()
        is_well = state is not None and (
            self.path == "/live" or (state["consuming"] is True and state["starvation"] is None)
        )
        body = json.dumps(state or {"error": "the event loop does not respond"}).encode() + b"\n"
        self.send_response(HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class names it
        """Log nothing: probes come every few seconds."""


@contextlib.contextmanager
def serve_health(worker: Worker, host: str, port: int) -> Iterator[int]:
    """Serve probes for the running loop; yields the port. Raises click.ClickException."""
    loop = asyncio.get_running_loop()

    def ask() -> dict[str, object] | None:
        answer: Future[dict[str, object]] = Future()
        try:
            loop.call_soon_threadsafe(lambda: answer.set_result(_state(worker)))
            return answer.result(ANSWER_SECONDS)
        except (TimeoutError, RuntimeError):
            # Blocked, or closed.
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
