"""Events about streamed groups while their jobs are being pushed. They are ours (docs/reference/events.md)."""

from __future__ import annotations

from waybill.ojs.spec.event_data import EventData


class WorkflowPushing(EventData, frozen=True, kw_only=True):
    """The jobs of a streamed group are still being pushed; this many are in their queues."""

    workflow_id: str
    workflow_name: str
    pushed: int


class WorkflowAbandoned(EventData, frozen=True, kw_only=True):
    """A streamed group was not reported as being pushed for long: no more of its jobs will arrive.

    It counts only if `heard_at` is the time of the last report.
    """

    workflow_id: str
    workflow_name: str
    heard_at: str
