"""The base of what the runtime keeps as dirty: queues that may have something to deliver."""

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Drainable:
    """A queue that may have messages for consumers with credit. `waybill.engine.delivery` delivers them."""

    is_dirty: bool

    def __init__(self) -> None:
        self.is_dirty = False

    def begin_drain(self) -> bool:
        """Prepare for deliveries. False if there must be none now."""
        raise NotImplementedError
