"""The definition of a workflow: a tree of jobs and of chains, groups, batches and graphs, or a saga, as one JSON value.

It is complete: its jobs are valid envelopes, so a coordinator needs neither other data nor code of the application to
start a step. A definition is checked when a workflow is pushed, and again by each reader of the stream.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from waybill.ojs.errors import InvalidJob
from waybill.ojs.workflow.numbering import MAX_MEMBERS

MAX_NODES: Final = 10_000
"""The maximum number of nodes in a definition. Streamed jobs do not count."""
MAX_DEPTH: Final = 8
"""The maximum nesting depth (ojs-workflows section 10.2)."""
MAX_DEFINITION_BYTES: Final = 4 * 1024 * 1024
MAX_NAME_LENGTH: Final = 255

NodeKind = Literal["job", "chain", "group", "batch", "dag", "saga"]
FailurePolicy = Literal["compensate", "retry", "skip"]
COMPENSATION: Final = "compensate:"
"""With the name of a step of a saga, the name of the job that undoes it."""
CALLBACKS: Final = ("on_complete", "on_success", "on_failure")


class Definition(msgspec.Struct, omit_defaults=True):
    """A node of the tree.

    A job has its envelope; a chain, a group, a batch and a graph have nodes in `steps`; a batch has callbacks, which
    are jobs. The steps of a saga are jobs with names, and its callbacks the jobs that undo them. `depends_on` names
    steps of the same graph. The jobs of a `streamed` group are not included: the program that pushes the workflow
    pushes them one after another, and writes their number at the end, or in `expected` if it is known before.
    """

    type: NodeKind
    name: str = ""
    job: dict[str, object] | None = None
    steps: list[Definition] = msgspec.field(default_factory=list)
    callbacks: dict[str, Definition] = msgspec.field(default_factory=dict)
    depends_on: list[str] = msgspec.field(default_factory=list)
    failure_policy: FailurePolicy = "compensate"
    """What a saga does when a step has failed."""
    streamed: bool = False
    expected: int | None = None


def read_definition(value: object) -> Definition:
    """Parse and check a definition. Raises InvalidJob naming what is wrong."""
    try:
        definition = msgspec.convert(value, Definition)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _invalid("workflow", str(error)) from error
    check_definition(definition)
    return definition


def check_definition(definition: Definition) -> None:
    """Raise InvalidJob naming the first rule that a definition breaks."""
    if definition.type == "job":
        raise _invalid("workflow", "is a job, not a chain, a group, a batch or a graph")
    count = _check(definition, "workflow", 1, may_stream=True)
    if count > MAX_NODES:
        raise _invalid("workflow", f"has {count} nodes, {MAX_NODES} are allowed: stream the jobs of a group, or spawn")


def _check(node: Definition, path: str, depth: int, *, may_stream: bool) -> int:
    """Check a node and its descendants; return their number."""
    if len(node.name) > MAX_NAME_LENGTH or "\0" in node.name:
        raise _invalid(path, "has a name that is too long, or has a zero in it")
    if node.type == "job":
        _check_job(node, path)
        return 1
    if node.type == "saga":
        _check_saga(node, path, depth)
    if depth > MAX_DEPTH:
        raise _invalid(path, f"is nested deeper than {MAX_DEPTH} levels")
    _check_parts(node, path, may_stream=may_stream)
    count = 1
    for index, step in enumerate(node.steps):
        # The pushing program can only stream what starts with the workflow.
        first = may_stream and node.type == "chain" and index == 0
        count += _check(step, f"{path}.steps[{index}]", depth + 1, may_stream=first)
        if count > MAX_NODES:
            return count
    for kind, callback in node.callbacks.items():
        if callback.type != "job":
            raise _invalid(f"{path}.callbacks.{kind}", "is not a job")
        count += _check(callback, f"{path}.callbacks.{kind}", depth + 1, may_stream=False)
    if node.type == "dag":
        order_of(node, path)
    return count


def _check_job(node: Definition, path: str) -> None:
    if node.job is None or node.steps or node.callbacks or node.streamed:
        raise _invalid(path, "is a job without an envelope, or with steps")
    for field in ("type", "queue"):
        if not isinstance(node.job.get(field), str):
            raise _invalid(f"{path}.job.{field}", "is missing")
    if not isinstance(node.job.get("args"), list):
        raise _invalid(f"{path}.job.args", "is missing")


def _check_saga(node: Definition, path: str, depth: int) -> None:
    names = [step.name for step in node.steps]
    if depth > 1:
        raise _invalid(path, "is a saga within a workflow: a saga is a workflow of its own")
    if len(set(names)) < len(names) or "" in names:
        raise _invalid(path, "has steps without a name, or two of one name")
    if any(step.type != "job" for step in node.steps):
        raise _invalid(path, "is a saga with steps other than jobs")
    if not node.callbacks.keys() <= {f"{COMPENSATION}{name}" for name in names}:
        raise _invalid(path, "is a saga with callbacks that undo none of its steps")


def _check_parts(node: Definition, path: str, *, may_stream: bool) -> None:
    if node.job is not None:
        raise _invalid(path, f"is a {node.type} with an envelope")
    if node.streamed:
        if not may_stream:
            raise _invalid(
                path, "can only be streamed as the first step of a workflow: let the step before it spawn it"
            )
        if node.type not in {"group", "batch"} or node.steps:
            raise _invalid(path, "is streamed, but is not a group or batch without jobs of its own")
    elif not node.steps:
        raise _invalid(path, "has no jobs")
    if node.expected is not None and not (node.streamed and 0 < node.expected <= MAX_MEMBERS):
        raise _invalid(path, f"expects other than 1 to {MAX_MEMBERS} jobs, or is not streamed")
    if node.type == "batch" and not node.callbacks:
        raise _invalid(path, "is a batch without callbacks: use a group")
    if node.type == "saga":
        return
    if node.type != "batch" and node.callbacks:
        raise _invalid(path, f"is a {node.type} with callbacks, which only a batch may have")
    if not node.callbacks.keys() <= set(CALLBACKS):
        raise _invalid(path, f"has callbacks other than {', '.join(CALLBACKS)}")
    if node.type != "dag" and any(step.depends_on for step in node.steps):
        raise _invalid(path, f"is a {node.type} whose steps depend on each other, which only those of a graph may")


def order_of(graph: Definition, path: str = "workflow") -> list[str]:
    """Return the names of a graph's steps, each after its dependencies.

    Raises InvalidJob for missing, unknown and repeated names, and for cycles.
    """
    steps = {step.name: step for step in graph.steps}
    if len(steps) != len(graph.steps) or "" in steps:
        raise _invalid(path, "has steps without a name, or two of one name")
    open_count: dict[str, int] = {}
    followers: dict[str, list[str]] = {name: [] for name in steps}
    for name, step in steps.items():
        needed = set(step.depends_on)
        if not needed <= steps.keys():
            one = min(needed.difference(steps))
            raise _invalid(path, f"has a step {name!r} that depends on {one!r}, which is not a step")
        open_count[name] = len(needed)
        for one in needed:
            followers[one].append(name)
    order = [name for name, count in open_count.items() if count == 0]
    for name in order:
        for follower in followers[name]:
            open_count[follower] -= 1
            if open_count[follower] == 0:
                order.append(follower)
    if len(order) < len(steps):
        stuck = sorted(name for name, count in open_count.items() if count > 0)
        raise _invalid(path, f"has steps that wait for each other: {', '.join(map(repr, stuck[:5]))}")
    return order


def _invalid(field: str, text: str) -> InvalidJob:
    return InvalidJob(field, text, code="INVALID_WORKFLOW")
