"""Connections to a web server that a user has named: a webhook, or the management API of a broker."""

import http.client
import ssl


def http_connection(scheme: str, host: str, port: int | None, timeout_s: float) -> http.client.HTTPConnection:
    """A connection that is not open yet, with TLS and a check of the certificate if `scheme` is https."""
    if scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(host, port, timeout=timeout_s)
