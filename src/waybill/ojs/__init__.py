"""Open Job Spec jobs over AMQP 0-9-1: push, work, retry, schedule, observe.

A program needs `Jobs`, `Worker` and `Retry`; the rest is for those who look closer.
"""

from waybill.ojs.client import BatchFailed, Jobs
from waybill.ojs.envelope import Envelope, ErrorRecord, parse_envelope, read_envelope
from waybill.ojs.errors import (
    DeadLetterJob,
    DiscardJob,
    FailJob,
    InvalidJob,
    InvalidTransition,
    JobError,
    JobsError,
    PushFailed,
    TopologyConflict,
)
from waybill.ojs.handler import Handler, NewJob, Options
from waybill.ojs.job_context import JobContext, current_job
from waybill.ojs.retry import Retry
from waybill.ojs.states import Operation, State, transition
from waybill.ojs.topology import SPEC, WEB, Declaration, Names, Topology
from waybill.ojs.worker import Worker

__all__ = [
    "SPEC",
    "WEB",
    "BatchFailed",
    "DeadLetterJob",
    "Declaration",
    "DiscardJob",
    "Envelope",
    "ErrorRecord",
    "FailJob",
    "Handler",
    "InvalidJob",
    "InvalidTransition",
    "JobContext",
    "JobError",
    "Jobs",
    "JobsError",
    "Names",
    "NewJob",
    "Operation",
    "Options",
    "PushFailed",
    "Retry",
    "State",
    "Topology",
    "TopologyConflict",
    "Worker",
    "current_job",
    "parse_envelope",
    "read_envelope",
    "transition",
]
