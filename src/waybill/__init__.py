"""Waybill: a durable AMQP broker, Open Job Spec jobs and a PySpark pipeline.

    from waybill import Broker, Jobs, Retry, Worker, connect, current_job

These are the names for everyday use. Each is imported when it is first used, so a worker never imports the broker, and
a broker never imports the jobs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from waybill.broker import Broker
    from waybill.client import connect
    from waybill.ojs import (
        BatchFailed,
        CancelledJob,
        Coordinator,
        DeadLetteredJob,
        DeadLetterJob,
        DeadLetters,
        DiscardedJob,
        DiscardJob,
        DuplicateJob,
        Envelope,
        ExpiredJob,
        FailJob,
        Handler,
        InvalidJob,
        Job,
        JobCancelled,
        JobContext,
        JobError,
        JobFailed,
        JobMiddleware,
        Jobs,
        JobsError,
        NoResult,
        Outbox,
        PostponeJob,
        PushFailed,
        ResultTimeout,
        Retry,
        Topology,
        Unique,
        Worker,
        current_job,
        resource,
    )

__all__ = [
    "BatchFailed",
    "Broker",
    "CancelledJob",
    "Coordinator",
    "DeadLetterJob",
    "DeadLetteredJob",
    "DeadLetters",
    "DiscardJob",
    "DiscardedJob",
    "DuplicateJob",
    "Envelope",
    "ExpiredJob",
    "FailJob",
    "Handler",
    "InvalidJob",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobError",
    "JobFailed",
    "JobMiddleware",
    "Jobs",
    "JobsError",
    "NoResult",
    "Outbox",
    "PostponeJob",
    "PushFailed",
    "ResultTimeout",
    "Retry",
    "Topology",
    "Unique",
    "Worker",
    "__version__",
    "connect",
    "current_job",
    "resource",
]

__version__: Final = "0.1.0"


def __getattr__(name: str) -> object:
    """Load a public name from the package that defines it. Raises AttributeError for any other name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = {"Broker": "waybill.broker", "connect": "waybill.client"}.get(name, "waybill.ojs")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value
