"""A definition made ready to be followed: its nodes by number, and who waits for whom.

Numbers go through the tree from the root, which is 1, each node before its children: what a job's number means is known
from the definition alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from waybill.ojs.workflow.definition import Definition, NodeKind

ROOT: Final = 1


class Node:
    """One node. `steps` are its children but for callbacks; `after` and `before` are its neighbours in a graph."""

    __slots__ = (
        "after", "before", "callback", "callbacks", "expected", "job", "kind", "name", "number", "parent", "place",
        "steps", "streamed",
    )  # fmt: skip

    def __init__(self, number: int, definition: Definition, parent: Node | None, place: int, callback: str) -> None:
        self.number = number
        self.kind: NodeKind = definition.type
        self.parent = parent
        self.place = place
        """The index among its siblings."""
        self.name = definition.name or callback or str(place)
        self.job = definition.job
        self.streamed = definition.streamed
        self.expected = definition.expected
        self.callback = callback
        """Which callback of its parent it is, empty for a step."""
        self.steps: list[Node] = []
        self.callbacks: dict[str, Node] = {}
        self.after: list[Node] = []
        self.before: list[Node] = []

    @property
    def key(self) -> str:
        """Under what name its result is known to those that come after it: steps of a graph have names, others not."""
        return self.name if self.parent is not None and self.parent.kind == "dag" else str(self.place)

    @property
    def path(self) -> str:
        """The names from the root down to it."""
        if self.parent is None:
            return ""
        above = self.parent.path
        own = self.callback or self.name
        return f"{above}.{own}" if above else own

    @property
    def job_type(self) -> str:
        """The type of its job, or what kind of node it is."""
        return str(self.job["type"]) if self.job is not None else self.kind


class Plan:
    """The nodes of a definition."""

    def __init__(self, definition: Definition) -> None:
        """`definition` keeps its rules."""
        self.nodes: list[Node] = []
        self.root = self._add(definition, None, 0, "")
        self.streamed = next((node for node in self.nodes if node.streamed), None)
        self.job_count = sum(node.kind == "job" for node in self.nodes)

    def __getitem__(self, number: int) -> Node:
        """Return the node with a number; see `has`."""
        return self.nodes[number - ROOT]

    def has(self, number: int) -> bool:
        """Say whether there is a node with this number."""
        return ROOT <= number < ROOT + len(self.nodes)

    def below(self, node: Node) -> Iterator[Node]:
        """Yield a node and everything below it."""
        yield node
        for child in (*node.steps, *node.callbacks.values()):
            yield from self.below(child)

    def _add(self, definition: Definition, parent: Node | None, place: int, callback: str) -> Node:
        node = Node(len(self.nodes) + ROOT, definition, parent, place, callback)
        self.nodes.append(node)
        node.steps = [self._add(step, node, index, "") for index, step in enumerate(definition.steps)]
        node.callbacks = {
            kind: self._add(one, node, len(definition.steps) + index, kind)
            for index, (kind, one) in enumerate(definition.callbacks.items())
        }
        if definition.type == "dag":
            by_name = {step.name: step for step in node.steps}
            for step, child in zip(definition.steps, node.steps, strict=True):
                child.after = [by_name[name] for name in dict.fromkeys(step.depends_on)]
                for one in child.after:
                    one.before.append(child)
        elif definition.type == "chain":
            for first, second in zip(node.steps, node.steps[1:], strict=False):
                second.after, first.before = [first], [second]
        return node
