"""How long a channel has held its oldest delivery."""

from mypy_extensions import i64


class DeliveryAges:
    """Deliveries do not record their time. Instead, marks record the last delivery tag at a time."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, i64]] = []

    def is_overdue(self, oldest: i64, last: i64, now: float, timeout_s: float) -> bool:
        """Whether `oldest` was unsettled already `timeout_s` ago. To be asked now and then: each call leaves a mark.

        `oldest` and `last` are the first unsettled delivery tag, 0 for none, and the last one that was given out.
        """
        marks = self._marks
        if oldest == 0:
            marks.clear()
            return False
        marks.append((now, last))
        while len(marks) > 1 and marks[1][0] <= now - timeout_s:
            del marks[0]
        at, tag = marks[0]
        return at <= now - timeout_s and oldest <= tag
