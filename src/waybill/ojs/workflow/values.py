"""The results of parts of a workflow, and the results that a job gets from those before it (ojs-workflows section 7).

A job sees the parts before it in the nearest chain, graph or batch around it: the earlier steps of its chain by index,
the steps that it depends on by name, or in a callback the jobs of the batch by index. The first part of these sees what
the enclosing part sees. So each job in a group after a step gets the result of that step.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol, TypeVar

import msgspec

from waybill.ojs.workflow.flow import Flow
from waybill.ojs.workflow.members import Members, Piece
from waybill.ojs.workflow.plan import Node, Plan
from waybill.ojs.workflow.progress import Progress, StepState
from waybill.ojs.workflow.rows import (
    DefinitionRow,
    ResultsRow,
    definition_key,
    members_key,
    progress_key,
    results_key,
)

MAX_INLINE_BYTES: Final = 1024 * 1024
"""The maximum total size of a group's results, unless they are read page by page."""
MAX_PARENTS_BYTES: Final = 256 * 1024
"""Beyond this, steps of a chain before the last one are left out."""
MAX_PARENTS: Final = 100
PLANS_REMEMBERED: Final = 200
PLANS_BYTES: Final = 32 * 1024 * 1024
NODE_BYTES: Final = 1200
"""What a node takes in memory beside its JSON."""

T = TypeVar("T", bound=msgspec.Struct)


class Reader(Protocol):
    """Loads a row: `JobStore.row`, or `Rows.get` within a fold."""

    def __call__(self, key: str, kind: type[T], /) -> T | None: ...


class TooLarge(Exception):
    """Results are too large."""


class Plans:
    """A cache of plans of recently used workflows: they never change, and are expensive to build.

    The fold and all readers of a store share one, in the store's thread or under its lock: plans take much memory.
    """

    def __init__(self) -> None:
        self._plans: OrderedDict[tuple[str, str], tuple[Plan, int]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._plans)

    def get(self, progress: Progress, read: Reader) -> Plan | None:
        """Return the plan of a workflow, None if its definition was deleted."""
        key = progress.id, progress.origin
        found = self._plans.get(key)
        if found is not None:
            self._plans.move_to_end(key)
            return found[0]
        row = read(definition_key(progress.id), DefinitionRow)
        if row is None:
            return None
        plan = Plan(row.definition)
        size = len(msgspec.json.encode(row.definition)) + NODE_BYTES * len(plan.nodes)
        self._plans[key] = plan, size
        self._size += size
        while len(self._plans) > 1 and (len(self._plans) > PLANS_REMEMBERED or self._size > PLANS_BYTES):
            self._size -= self._plans.popitem(last=False)[1][1]
        return plan


def read_flow(read: Reader, plans: Plans, workflow_id: str) -> Flow | None:
    """Load a workflow from a store; None if it is unknown."""
    progress = read(progress_key(workflow_id), Progress)
    plan = None if progress is None else plans.get(progress, read)
    if progress is None or plan is None:
        return None
    return Flow(plan, progress, Members(progress.members, lambda piece: read(members_key(workflow_id, piece), Piece)))


class Values:
    """The results of one workflow in a store."""

    def __init__(self, flow: Flow, read: Reader) -> None:
        """`flow` may have results that are not stored yet."""
        self._flow = flow
        self._read = read
        self._key = ""
        self._row: ResultsRow | None = None
        """The row that was loaded last, and its key: results are read in order, and a row has many."""

    def job(self, place: int, *, streamed: bool) -> bytes | None:
        """Return the result of a node's job or of a member, None if it has none."""
        new = self._flow.results.get((streamed, place))
        if new is not None:
            return new
        key = results_key(self._flow.progress.id, place, streamed=streamed)
        if key != self._key:
            self._key, self._row = key, self._read(key, ResultsRow)
        found = None if self._row is None else self._row.values.get(place)
        return None if found is None else bytes(found)

    def node(self, node: Node, limit: int = MAX_INLINE_BYTES) -> bytes:
        """Return the result of a part as JSON, or an error if it has failed; raises TooLarge."""
        if node.kind == "job":
            return self._job_or_error(node)
        if node.kind in {"chain", "saga"}:
            return self.node(node.steps[-1], limit) if node.steps else b"null"
        if node.streamed:
            return self._members(limit)
        return self._object({step.key: step for step in node.steps}, limit)

    def parents(self, node: Node) -> dict[str, msgspec.Raw]:
        """Return the results that a job gets from those before it."""
        if node.callback and node.parent is not None:
            batch = node.parent
            try:
                # What undoes a step of a saga gets all results by name.
                steps = {step.name: step for step in batch.steps}
                found = self._object(steps, MAX_INLINE_BYTES) if batch.kind == "saga" else self.node(batch)
            except TooLarge:
                return {"result_ref": msgspec.Raw(self._reference(batch)[len(b'{"result_ref":') : -1])}
            return msgspec.json.decode(found, type=dict[str, msgspec.Raw])
        inner: Node | None = node
        while inner is not None and inner.parent is not None:
            if inner.parent.kind in {"chain", "saga"} and inner.place > 0:
                return self._before(inner.parent.steps[: inner.place])
            if inner.parent.kind == "dag" and inner.after:
                return {step.key: msgspec.Raw(self.inline(step)) for step in inner.after}
            inner = inner.parent
        return {}

    def inline(self, node: Node) -> bytes:
        """Return the result of a part, or a reference if it is too large."""
        try:
            return self.node(node)
        except TooLarge:
            return self._reference(node)

    def page(self, node: Node, first: int, limit: int) -> tuple[dict[int, msgspec.Raw], int | None]:
        """Return results of a group from an index on, about `limit` bytes of them, and the index of further results."""
        found: dict[int, msgspec.Raw] = {}
        size = 0
        count = self._flow.progress.members.size if node.streamed else len(node.steps)
        for index in range(first, count):
            value = self.job(index, streamed=True) if node.streamed else self.inline(node.steps[index])
            if value is None or value == b"null":
                continue
            found[index] = msgspec.Raw(value)
            size += len(value) + 16
            if size >= limit:
                return found, index + 1
        return found, None

    def _before(self, steps: list[Node]) -> dict[str, msgspec.Raw]:
        found: dict[str, msgspec.Raw] = {}
        size = 0
        for step in reversed(steps[-MAX_PARENTS:]):
            value = self.inline(step)
            size += len(value)
            if found and size > MAX_PARENTS_BYTES:
                break
            found[step.key] = msgspec.Raw(value)
        return dict(reversed(found.items()))

    def _job_or_error(self, node: Node) -> bytes:
        if self._flow.state(node) != StepState.FAILED:
            return self.job(node.number, streamed=False) or b"null"
        known = (one for one in self._flow.progress.errors if one.number == node.number)
        error = next(known, None)
        text = "the job failed" if error is None else error.message
        code = "HANDLER_ERROR" if error is None else error.code
        return msgspec.json.encode({"error": {"code": code, "message": text}})

    def _members(self, limit: int) -> bytes:
        counts = self._flow.progress.members
        total = counts.total or 0
        if total * 6 > limit:
            raise TooLarge
        failed = set(self._flow.members.failed()) if counts.failed else set()
        parts = []
        size = 0
        for index in range(total):
            value = _FAILED if index in failed else self.job(index, streamed=True) or b"null"
            parts.append(b'"%d":%b' % (index, value))
            size += len(parts[-1])
            if size > limit:
                raise TooLarge
        return b"{%b}" % b",".join(parts)

    def _object(self, steps: dict[str, Node], limit: int) -> bytes:
        parts = []
        size = 0
        for key, step in steps.items():
            parts.append(b"%b:%b" % (msgspec.json.encode(key), self.node(step, limit)))
            size += len(parts[-1])
            if size > limit:
                raise TooLarge
        return b"{%b}" % b",".join(parts)

    def _reference(self, node: Node) -> bytes:
        return f'{{"result_ref":"ojs:workflow/{self._flow.progress.id}/{node.number}"}}'.encode()


_FAILED: Final = b'{"error":{"code":"HANDLER_ERROR","message":"the job failed"}}'
