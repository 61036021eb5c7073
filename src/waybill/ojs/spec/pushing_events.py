"""Events about streamed groups while their jobs are being pushed. They are ours (docs/reference/events.md)."""

from __future__ import annotations

from waybill.ojs.spec.event_data import EventData


class WorkflowPushing(EventData, frozen=True, kw_only=True):
    """The jobs of a streamed group are still being pushed; so many are in their queues."""

    workflow_id: str
    workflow_name: str
    pushed: int


class WorkflowAbandoned(EventData, frozen=True, kw_only=True):
    """Nobody has told for long that a streamed group is being pushed: no more of its jobs come.

    It counts if `heard_at` is the time of the last event that told so.
    """

    workflow_id: str
    workflow_name: str
    heard_at: str
