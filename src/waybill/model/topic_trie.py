"""Topic patterns as a trie of words. Matching visits each node at most once.

A pattern is words separated by dots; `*` stands for exactly one word, `#` for zero or more (AMQP 0-9-1, 3.1.3.3).
Which words of the key a node may have behind it is a set of positions, kept as the bits of one number: bit n stands for
"n words are used up". So several `#` in a row, which can share the words among them in any number of ways, are as many
nodes and no more.
"""

from waybill.model.binding import Binding
from waybill.model.errors import too_many_steps


def _words(key: str) -> list[str]:
    """The words of a key or pattern; the empty one has none."""
    return key.split(".") if key else []


class _Node:
    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.bindings: dict[str, Binding] = {}


class TopicTrie:
    """The bindings of one topic exchange, by pattern. `steps`: how many nodes the last match visited."""

    def __init__(self) -> None:
        self.steps = 0
        self._root = _Node()

    def add(self, binding: Binding) -> None:
        node = self._root
        for word in _words(binding.routing_key):
            child = node.children.get(word)
            if child is None:
                child = _Node()
                node.children[word] = child
            node = child
        node.bindings[binding.key] = binding

    def remove(self, binding: Binding) -> None:
        """Remove a binding, and the nodes that no other binding needs."""
        path: list[tuple[_Node, str]] = []
        node = self._root
        for word in _words(binding.routing_key):
            path.append((node, word))
            node = node.children[word]
        del node.bindings[binding.key]
        for parent, word in reversed(path):
            child = parent.children[word]
            if child.bindings or child.children:
                break
            del parent.children[word]

    def match(self, routing_key: str, steps_max: int) -> list[Binding]:
        """The bindings whose patterns match, each once. Raises `PreconditionFailed` after too many steps."""
        found: dict[str, Binding] = {}
        words = _words(routing_key)
        all_used = 1 << len(words)
        every = (all_used << 1) - 1
        # Where each word stands: the positions before it.
        places: dict[str, int] = {}
        for index, word in enumerate(words):
            places[word] = places.get(word, 0) | 1 << index
        # An explicit stack: deep patterns must not exhaust Python's call stack.
        pending: list[tuple[_Node, int]] = [(self._root, 1)]
        steps = 0
        while pending:
            node, used = pending.pop()
            steps += 1
            if steps > steps_max:
                raise too_many_steps(steps_max)
            if used & all_used and node.bindings:
                found.update(node.bindings)
            children = node.children
            if not children:
                continue
            tail = children.get("#")
            if tail is not None:
                # From the first position on, it may match any number of words.
                pending.append((tail, every & ~((used & -used) - 1)))
            rest = used & (all_used - 1)
            if not rest:
                continue
            child = children.get("*")
            if child is not None:
                pending.append((child, rest << 1))
            steps += min(len(children), len(places)) >> 3
            if len(children) < len(places):
                for word, child in children.items():
                    reached = rest & places.get(word, 0)
                    if reached and word not in {"*", "#"}:
                        pending.append((child, reached << 1))
            else:
                for word, place in places.items():
                    if rest & place and word not in {"*", "#"} and (child := children.get(word)) is not None:
                        pending.append((child, (rest & place) << 1))
        self.steps = steps
        return list(found.values())
