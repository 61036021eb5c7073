"""Topic patterns as a trie of words: matching costs the length of the key, not the number of bindings.

A pattern is words separated by dots; `*` stands for exactly one word, `#` for zero or more (AMQP 0-9-1, 3.1.3.3).
"""

from waybill.model.binding import Binding


def _words(key: str) -> list[str]:
    """The words of a key or pattern; the empty one has none."""
    return key.split(".") if key else []


class _Node:
    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.bindings: dict[str, Binding] = {}


class TopicTrie:
    """The bindings of one topic exchange, by pattern."""

    def __init__(self) -> None:
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
        """Forget a binding and the branch that only it needed."""
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

    def match(self, routing_key: str) -> list[Binding]:
        """Every binding whose pattern matches, each once."""
        found: dict[str, Binding] = {}
        words = _words(routing_key)
        # A stack of (node, index) keeps deep patterns off Python's call stack. A state is visited once: several `#` in
        # a row would otherwise multiply the ways to reach the same place.
        seen: set[tuple[int, int]] = set()
        pending: list[tuple[_Node, int]] = [(self._root, 0)]
        end = len(words)
        while pending:
            node, index = pending.pop()
            children = node.children
            if index == end and node.bindings:
                found.update(node.bindings)
            if not children:
                continue
            tail = children.get("#")
            if tail is not None:
                state = (id(tail), index)
                if state not in seen:
                    seen.add(state)
                    pending.extend((tail, rest) for rest in range(index, end + 1))
            if index < end:
                child = children.get(words[index])
                if child is not None and words[index] != "#":
                    pending.append((child, index + 1))
                child = children.get("*")
                if child is not None and words[index] != "*":
                    pending.append((child, index + 1))
        return list(found.values())
