"""What is written for people. Texts of jobs come from anybody, and are no commands to a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

_WHITE: frozenset[str] = frozenset("\n\t")


class Console(console.Console):
    """A console of rich that shows control characters of texts as signs, and executes none of them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, with what is no command of rich's own made plain."""
        for segment in super().render(renderable, options):
            text = segment.text
            yield segment if segment.control or text.isprintable() else Segment(plain(text), segment.style)


def plain(text: str) -> str:
    """Return a text with the replacement sign for each character that a terminal would execute."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in _WHITE else "\ufffd" for sign in text)
