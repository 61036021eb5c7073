"""Middleware, one file each, around the enqueuing and the execution of every job.

Rarely used middleware, and middleware that needs optional packages, is imported on demand.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from waybill.ojs.middleware.chain import Call, Chain, Enqueue, EnqueueMiddleware, JobMiddleware, Middleware, compose
from waybill.ojs.middleware.log_context import JobLogFilter, JobLogging, log_context

if TYPE_CHECKING:
    from waybill.ojs.middleware.concurrency_limit import ConcurrencyLimit
    from waybill.ojs.middleware.encryption import DecryptionFailed, Encryption
    from waybill.ojs.middleware.json_log import JsonLogFormatter
    from waybill.ojs.middleware.limited import WaitPolicy
    from waybill.ojs.middleware.metrics import JobMetrics
    from waybill.ojs.middleware.rate_limit import JobRateLimits, RateLimit
    from waybill.ojs.middleware.retry_in_place import RetryInPlace
    from waybill.ojs.middleware.time_limit import TimeLimit
    from waybill.ojs.middleware.tracing import Tracing

_LAZY: Final = {
    "ConcurrencyLimit": "concurrency_limit",
    "JobRateLimits": "rate_limit",
    "JsonLogFormatter": "json_log",
    "WaitPolicy": "limited",
    "RateLimit": "rate_limit",
    "RetryInPlace": "retry_in_place",
    "TimeLimit": "time_limit",
    "DecryptionFailed": "encryption",
    "Encryption": "encryption",
    "JobMetrics": "metrics",
    "Tracing": "tracing",
}

__all__ = [
    "Call",
    "Chain",
    "ConcurrencyLimit",
    "DecryptionFailed",
    "Encryption",
    "Enqueue",
    "EnqueueMiddleware",
    "JobLogFilter",
    "JobLogging",
    "JobMetrics",
    "JobMiddleware",
    "JobRateLimits",
    "JsonLogFormatter",
    "Middleware",
    "RateLimit",
    "RetryInPlace",
    "TimeLimit",
    "Tracing",
    "WaitPolicy",
    "compose",
    "log_context",
]


def __getattr__(name: str) -> object:
    """Import names lazily. Raises ImportError with the name of the extra if a package is missing."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    return found
