"""Connections to HTTP servers: webhooks, and the management APIs of brokers."""

import http.client
import ssl


def http_connection(scheme: str, host: str, port: int | None, timeout_s: float) -> http.client.HTTPConnection:
    """Return an unopened connection, with TLS and certificate verification if `scheme` is https."""
    if scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(host, port, timeout=timeout_s)
