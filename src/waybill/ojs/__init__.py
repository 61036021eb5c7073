"""Open Job Spec jobs over AMQP 0-9-1: push, work, retry, schedule, observe.

A program needs `Jobs`, `Worker` and `Retry`; the rest is for those who look closer.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from waybill.ojs.client import BatchFailed, Jobs
from waybill.ojs.control_message import JobInfo
from waybill.ojs.coordinator import Coordinator
from waybill.ojs.dead_letters import DeadJob, DeadLetters
from waybill.ojs.envelope import Envelope, ErrorRecord, parse_envelope, read_envelope
from waybill.ojs.errors import (
    ControlFailed,
    DeadLetterJob,
    DiscardJob,
    FailJob,
    InvalidJob,
    InvalidTransition,
    JobCancelled,
    JobError,
    JobsError,
    PostponeJob,
    ProcessLost,
    PushFailed,
    TopologyConflict,
)
from waybill.ojs.handler import Handler, NewJob, Options
from waybill.ojs.job_context import JobContext, current_job
from waybill.ojs.middleware import Call, Enqueue, JobMiddleware
from waybill.ojs.migration import Migration, MigrationBlocked, Move
from waybill.ojs.resources import resource
from waybill.ojs.retry import Retry
from waybill.ojs.states import Operation, State, transition
from waybill.ojs.topology import SPEC, WEB, Declaration, Names, Topology
from waybill.ojs.topology_check import Finding, Standing, check_topology
from waybill.ojs.worker import Worker

if TYPE_CHECKING:
    from waybill.ojs.outbox import Outbox, OutboxRelay

__all__ = [
    "SPEC",
    "WEB",
    "BatchFailed",
    "Call",
    "ControlFailed",
    "Coordinator",
    "DeadJob",
    "DeadLetterJob",
    "DeadLetters",
    "Declaration",
    "DiscardJob",
    "Enqueue",
    "Envelope",
    "ErrorRecord",
    "FailJob",
    "Finding",
    "Handler",
    "InvalidJob",
    "InvalidTransition",
    "JobCancelled",
    "JobContext",
    "JobError",
    "JobInfo",
    "JobMiddleware",
    "Jobs",
    "JobsError",
    "Migration",
    "MigrationBlocked",
    "Move",
    "Names",
    "NewJob",
    "Operation",
    "Options",
    "Outbox",
    "OutboxRelay",
    "PostponeJob",
    "ProcessLost",
    "PushFailed",
    "Retry",
    "Standing",
    "State",
    "Topology",
    "TopologyConflict",
    "Worker",
    "check_topology",
    "current_job",
    "parse_envelope",
    "read_envelope",
    "resource",
    "transition",
]


def __getattr__(name: str) -> object:
    """Import what needs SQLAlchemy when it is asked for. Raises ImportError that names the extra if it is missing."""
    if name not in {"Outbox", "OutboxRelay"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module("waybill.ojs.outbox"), name)
    return found
