"""Open Job Spec jobs over AMQP 0-9-1: push, work, retry, schedule, observe.

A program needs `Jobs`, `Worker` and `Retry`; the rest is for special needs. What a worker does not need is
loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from waybill.ojs.client import Jobs
from waybill.ojs.errors import (
    ControlFailed,
    CronNotFound,
    DeadLetterJob,
    DeclarationRefused,
    DiscardJob,
    DuplicateJob,
    FailJob,
    InvalidArguments,
    InvalidJob,
    InvalidTransition,
    JobCancelled,
    JobError,
    JobsError,
    PostponeJob,
    ProcessLost,
    PushFailed,
    TopologyConflict,
    UnknownContext,
    UnknownQueue,
)
from waybill.ojs.handler import Handler, NewJob, Options
from waybill.ojs.hooks import Hooks, Moment
from waybill.ojs.job import Job
from waybill.ojs.job_context import JobContext, current_job
from waybill.ojs.middleware import Call, Enqueue, JobMiddleware
from waybill.ojs.push.publisher import BatchFailed
from waybill.ojs.resources import resource
from waybill.ojs.results.errors import (
    CancelledJob,
    DeadLetteredJob,
    DiscardedJob,
    ExpiredJob,
    JobFailed,
    NoResult,
    ResultExpired,
    ResultTimeout,
    ResultTooLarge,
)
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.envelope import Envelope, ErrorRecord, parse_envelope, read_envelope
from waybill.ojs.spec.retry import Retry
from waybill.ojs.spec.states import Operation, State, transition
from waybill.ojs.spec.unique import Unique
from waybill.ojs.sync.job import SyncJob
from waybill.ojs.topology.names import SPEC, WEB, Names
from waybill.ojs.topology.topology import Declaration, Topology
from waybill.ojs.worker.worker import Worker

if TYPE_CHECKING:
    from waybill.ojs.coordinator.coordinator import Coordinator
    from waybill.ojs.cron.crons import Crons, CronSettings
    from waybill.ojs.cron.definition import CronFiring, CronInfo, CronJob
    from waybill.ojs.dead_letters import DeadJob, DeadLetters
    from waybill.ojs.push.outbox import Outbox, OutboxRelay
    from waybill.ojs.sync.crons import SyncCrons
    from waybill.ojs.sync.jobs import SyncJobs
    from waybill.ojs.sync.pipeline import SyncPipeline
    from waybill.ojs.sync.workflow import SyncWorkflow
    from waybill.ojs.topology.broker_changes import MigrationBlocked
    from waybill.ojs.topology.check import Finding, Standing, check_topology
    from waybill.ojs.topology.migration import Migration, Move
    from waybill.ojs.workflow.handle import WorkflowHandle, WorkflowNotCompleted
    from waybill.ojs.workflow.numbering import new_workflow_id
    from waybill.ojs.workflow.parents import StepFailed, parent_outcomes, parent_result, parent_results
    from waybill.ojs.workflow.requests import StepInfo, WorkflowInfo
    from waybill.ojs.workflow.shapes import Saga, Shape, Step, Workflow, batch, chain, chord, group

__all__ = [
    "SPEC",
    "WEB",
    "BatchFailed",
    "Call",
    "CancelledJob",
    "ControlFailed",
    "Coordinator",
    "CronFiring",
    "CronInfo",
    "CronJob",
    "CronNotFound",
    "CronSettings",
    "Crons",
    "DeadJob",
    "DeadLetterJob",
    "DeadLetteredJob",
    "DeadLetters",
    "Declaration",
    "DeclarationRefused",
    "DiscardJob",
    "DiscardedJob",
    "DuplicateJob",
    "Enqueue",
    "Envelope",
    "ErrorRecord",
    "ExpiredJob",
    "FailJob",
    "Finding",
    "Handler",
    "Hooks",
    "InvalidArguments",
    "InvalidJob",
    "InvalidTransition",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobError",
    "JobFailed",
    "JobInfo",
    "JobMiddleware",
    "Jobs",
    "JobsError",
    "Migration",
    "MigrationBlocked",
    "Moment",
    "Move",
    "Names",
    "NewJob",
    "NoResult",
    "Operation",
    "Options",
    "Outbox",
    "OutboxRelay",
    "PostponeJob",
    "ProcessLost",
    "PushFailed",
    "ResultExpired",
    "ResultTimeout",
    "ResultTooLarge",
    "Retry",
    "Saga",
    "Shape",
    "Standing",
    "State",
    "Step",
    "StepFailed",
    "StepInfo",
    "SyncCrons",
    "SyncJob",
    "SyncJobs",
    "SyncPipeline",
    "SyncWorkflow",
    "Topology",
    "TopologyConflict",
    "Unique",
    "UnknownContext",
    "UnknownQueue",
    "Worker",
    "Workflow",
    "WorkflowHandle",
    "WorkflowInfo",
    "WorkflowNotCompleted",
    "batch",
    "chain",
    "check_topology",
    "chord",
    "current_job",
    "group",
    "new_workflow_id",
    "parent_outcomes",
    "parent_result",
    "parent_results",
    "parse_envelope",
    "read_envelope",
    "resource",
    "transition",
]

_HOMES: Final = {
    "Coordinator": "coordinator.coordinator",
    "CronFiring": "cron.definition",
    "CronInfo": "cron.definition",
    "CronJob": "cron.definition",
    "CronSettings": "cron.crons",
    "Crons": "cron.crons",
    "DeadJob": "dead_letters",
    "DeadLetters": "dead_letters",
    "Finding": "topology.check",
    "Migration": "topology.migration",
    "MigrationBlocked": "topology.broker_changes",
    "Move": "topology.migration",
    "Outbox": "push.outbox",
    "OutboxRelay": "push.outbox",
    "Saga": "workflow.shapes",
    "Shape": "workflow.shapes",
    "Standing": "topology.check",
    "Step": "workflow.shapes",
    "StepFailed": "workflow.parents",
    "StepInfo": "workflow.requests",
    "SyncCrons": "sync.crons",
    "SyncJobs": "sync.jobs",
    "SyncPipeline": "sync.pipeline",
    "SyncWorkflow": "sync.workflow",
    "Workflow": "workflow.shapes",
    "WorkflowHandle": "workflow.handle",
    "WorkflowInfo": "workflow.requests",
    "WorkflowNotCompleted": "workflow.handle",
    "batch": "workflow.shapes",
    "chain": "workflow.shapes",
    "check_topology": "topology.check",
    "chord": "workflow.shapes",
    "group": "workflow.shapes",
    "new_workflow_id": "workflow.numbering",
    "parent_outcomes": "workflow.parents",
    "parent_result": "workflow.parents",
    "parent_results": "workflow.parents",
}


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it.

    Raises AttributeError for any other name, ImportError for one that needs an extra that is missing.
    """
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
