"""Terminal output. Texts of jobs are untrusted: they must not send control sequences to a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rich import console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

_WHITESPACE: Final = frozenset("\n\t")


class Console(console.Console):
    """A rich console that replaces control characters in texts, and shows brackets and colons as they are."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - as rich has them
        """`options` are those of rich. With markup, a name could hide text, contain a link, or be invalid."""
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render; control characters that are not rich's own are replaced."""
        for segment in super().render(renderable, options):
            text = segment.text
            yield segment if segment.control or text.isprintable() else Segment(plain(text), segment.style)


def plain(text: str) -> str:
    """Return a text with a replacement character for each control character."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() or character in _WHITESPACE else "\ufffd" for character in text)
