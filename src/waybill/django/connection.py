"""The `Jobs` object of a project, made from its settings.

WAYBILL = {
"URL": "amqp://...",                        # or "CONTEXT"; the default is that of `Jobs()`
"PUSH_TIMEOUT": 5.0,                        # seconds that a push waits for an unreachable broker
"TOPOLOGY": {"prefix": "shop."},            # arguments of `waybill.Topology`, or a Topology
"MIDDLEWARE": ["shop.middleware.Audit"],    # paths of classes or objects
}
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections
from django.utils.module_loading import import_string

from waybill.ojs import JobMiddleware, Jobs, Topology
from waybill.ojs.connection.target import chosen
from waybill.ojs.handler import Registration

PUSH_TIMEOUT_SECONDS: Final = 5.0
_KEYS: Final = {"URL", "CONTEXT", "PUSH_TIMEOUT", "TOPOLOGY", "MIDDLEWARE"}


class DjangoJobs(Jobs):
    """Jobs whose synchronous handlers get fresh database connections, as requests do."""

    def handler(self, job_type: str, **options: Any) -> Registration:  # noqa: ANN401 - those of `Jobs.handler`
        """Like `Jobs.handler`. Old connections of the handler's thread are closed before and after each job."""
        register = super().handler(job_type, **options)

        def decorate(function: Callable[..., Any]) -> Any:  # noqa: ANN401 - see `Registration`
            if inspect.iscoroutinefunction(function) or options.get("process"):
                return register(function)

            @functools.wraps(function)
            def with_connections(*args: object, **kwargs: object) -> object:
                with fresh_connections():
                    return function(*args, **kwargs)

            return register(with_connections)

        return decorate


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Close database connections that are broken or older than CONN_MAX_AGE, before and after."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


def _configured() -> DjangoJobs:
    given: dict[str, Any] = getattr(settings, "WAYBILL", {})
    unknown = given.keys() - _KEYS
    if unknown:
        raise ImproperlyConfigured(
            f"unknown keys in WAYBILL: {', '.join(sorted(unknown))}; the keys are {', '.join(sorted(_KEYS))}"
        )
    broker = chosen(given.get("URL"), given.get("CONTEXT"))
    topology = given.get("TOPOLOGY", broker.topology() if broker.context is not None else None)
    return DjangoJobs(
        broker.uri,
        topology=Topology(**topology) if isinstance(topology, dict) else topology,
        push_timeout=given.get("PUSH_TIMEOUT", PUSH_TIMEOUT_SECONDS),
        middleware=[_middleware(path) for path in given.get("MIDDLEWARE", ())],
    )


def _middleware(path: str | JobMiddleware) -> JobMiddleware:
    found = import_string(path) if isinstance(path, str) else path
    made: object = found() if isinstance(found, type) else found
    if not isinstance(made, JobMiddleware):
        raise ImproperlyConfigured(f"WAYBILL['MIDDLEWARE']: {path} is not a waybill.JobMiddleware")
    return made


jobs: Final = _configured()
"""The jobs of this project."""
