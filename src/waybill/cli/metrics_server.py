"""Serves metrics for Prometheus."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from prometheus_client.registry import Collector


@contextlib.contextmanager
def serve(collector: Callable[[], Collector], port: int) -> Iterator[int]:
    """Serve the metrics of a collector on loopback, in a thread; yields the port. Raises click.ClickException."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server

        made = collector()
    except ImportError as error:
        raise click.ClickException(
            "--metrics-port needs prometheus-client: pip install 'waybill-amqp[metrics]'"
        ) from error
    registry = CollectorRegistry()
    registry.register(made)
    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise click.ClickException(f"port {port}: {error}") from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
