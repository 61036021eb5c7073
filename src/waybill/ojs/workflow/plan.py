"""A definition prepared for execution: nodes by number, and their dependencies.

The root is 1, and each node precedes its children, so the definition alone tells which node has a number.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Final

from waybill.ojs.workflow.definition import Definition, NodeKind

ROOT: Final = 1


class Node:
    """A node. `steps` are its children except callbacks; `after` and `before` are its neighbours in a graph.

    References back are weak, as the plan has all nodes: cycles of large jobs would wait for the garbage collector.
    """

    __slots__ = (
        "__weakref__", "_before", "_parent", "after", "callback", "callbacks", "expected", "job", "kind", "name",
        "number", "place", "policy", "steps", "streamed",
    )  # fmt: skip

    def __init__(self, number: int, definition: Definition, parent: Node | None, place: int, callback: str) -> None:
        self.number = number
        self.kind: NodeKind = definition.type
        self._parent = None if parent is None else weakref.ref(parent)
        self.place = place
        """The index among its siblings."""
        self.name = definition.name or callback or str(place)
        self.job = definition.job
        self.streamed = definition.streamed
        self.expected = definition.expected
        self.policy = definition.failure_policy
        self.callback = callback
        """The name of this callback in its parent, empty for a step."""
        self.steps: list[Node] = []
        self.callbacks: dict[str, Node] = {}
        self.after: list[Node] = []
        self._before: list[weakref.ref[Node]] = []

    @property
    def parent(self) -> Node | None:
        """The node that has this one as a step or a callback."""
        return None if self._parent is None else self._parent()

    @property
    def before(self) -> list[Node]:
        """The nodes that have this one in `after`."""
        return [node for node in (one() for one in self._before) if node is not None]

    def put_after(self, earlier: list[Node]) -> None:
        """Set `after`."""
        self.after = earlier
        for one in earlier:
            one.precede(self)

    def precede(self, later: Node) -> None:
        """Add a node to `before`."""
        self._before.append(weakref.ref(later))

    @property
    def key(self) -> str:
        """The key of its result for later steps: steps of a graph have names, others an index."""
        return self.name if self.parent is not None and self.parent.kind == "dag" else str(self.place)

    @property
    def path(self) -> str:
        """The names from the root to this node."""
        if self.parent is None:
            return ""
        above = self.parent.path
        own = self.callback or self.name
        return f"{above}.{own}" if above else own

    @property
    def job_type(self) -> str:
        """The type of its job, or the kind of node."""
        return str(self.job["type"]) if self.job is not None else self.kind


class Plan:
    """The nodes of a definition."""

    def __init__(self, definition: Definition) -> None:
        """`definition` must be valid."""
        self.nodes: list[Node] = []
        self.root = self._add(definition, None, 0, "")
        self.streamed = next((node for node in self.nodes if node.streamed), None)
        self.job_count = sum(node.kind == "job" for node in self.nodes)

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number - ROOT]

    def has(self, number: int) -> bool:
        """Return whether there is a node with this number."""
        return ROOT <= number < ROOT + len(self.nodes)

    def below(self, node: Node) -> Iterator[Node]:
        """Yield a node and its descendants."""
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
                child.put_after([by_name[name] for name in dict.fromkeys(step.depends_on)])
        elif definition.type in {"chain", "saga"}:
            for first, second in zip(node.steps, node.steps[1:], strict=False):
                second.put_after([first])
        return node
