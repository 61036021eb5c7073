"""Workflows for callers without an event loop, as returned by `push_sync` of chains, groups and others."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from waybill.ojs.sync.caller import Caller
from waybill.ojs.workflow.handle import WorkflowHandle
from waybill.ojs.workflow.requests import WorkflowInfo

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class SyncWorkflow(Generic[R_co]):
    """A workflow that was pushed, here or elsewhere, with the blocking methods of `WorkflowHandle`.

    `R_co` is its result. Any thread may use it.
    """

    __slots__ = ("_call", "id")

    def __init__(self, workflow_id: str, call: Caller[WorkflowHandle[Any]]) -> None:
        self.id = workflow_id
        self._call = call

    def info(self) -> WorkflowInfo:
        """As `WorkflowHandle.info`."""
        return self._call(lambda handle: handle.info(), "workflow.info()")

    def state(self) -> str:
        """As `WorkflowHandle.state`."""
        return self._call(lambda handle: handle.state(), "workflow.state()")

    def wait(self, *, timeout: float | None = None) -> WorkflowInfo:
        """As `WorkflowHandle.wait`."""
        return self._call(lambda handle: handle.wait(timeout=timeout), "workflow.wait(...)")

    def result(self, *, timeout: float | None = None) -> R_co:
        """As `WorkflowHandle.result`."""
        found: R_co = self._call(lambda handle: handle.result(timeout=timeout), "workflow.result(...)")
        return found

    def cancel(self) -> WorkflowInfo:
        """As `WorkflowHandle.cancel`."""
        return self._call(lambda handle: handle.cancel(), "workflow.cancel()")

    def retry(self) -> WorkflowInfo:
        """As `WorkflowHandle.retry`."""
        return self._call(lambda handle: handle.retry(), "workflow.retry()")

    def __repr__(self) -> str:
        return f"<SyncWorkflow {self.id}>"
