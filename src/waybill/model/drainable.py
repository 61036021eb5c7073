"""The base of what the runtime drains in each turn."""

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Drainable:
    """A queue that may have messages for consumers with credit."""

    is_dirty: bool

    def __init__(self) -> None:
        self.is_dirty = False

    def drain(self) -> None:
        """Hand messages to consumers until messages or credit run out."""
        raise NotImplementedError
