"""The sent commands of a session that may outlive its connection, until the peer confirms them."""

from collections import deque
from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp010.server.ids import Spans
from waybill.model.runtime import Runtime

REPLAY_BYTES_MAX: Final = 4 << 20
"""Deliveries wait while this much of a session is not confirmed."""
REPLAY_COUNT_MAX: Final = 16_384
UNCONFIRMED_BYTES_MAX: Final = 4 * REPLAY_BYTES_MAX
"""A session ends if this much is not confirmed."""
SENT_BYTES: Final = 200
SCAN_UNIT_BITS: Final = 4


class Sent:
    """One command, ready to be written to any channel. `id` is a count (see `ids`)."""

    def __init__(self, number: i64, payload: bytes, header: bytes | None, body: bytes | None) -> None:
        self.id: i64 = number
        self.payload = payload
        self.header = header
        self.body = body
        self.size: i64 = len(payload) + (0 if header is None else len(header)) + (0 if body is None else len(body))


class Replay:
    """The commands of one session that the peer has not confirmed, in order. `size` is in octets."""

    def __init__(self, runtime: Runtime) -> None:
        self.sent: deque[Sent] = deque()
        self.size: i64 = 0
        self._runtime = runtime

    @property
    def is_full(self) -> bool:
        if self.size > REPLAY_BYTES_MAX or len(self.sent) > REPLAY_COUNT_MAX:
            return True
        # Bodies and transactions are counted elsewhere.
        return self.size > 0 and self._runtime.held_bytes > self._runtime.held_limit_bytes >> 1

    def add(self, sent: Sent) -> None:
        self.sent.append(sent)
        self._count(sent.size + SENT_BYTES)

    def _count(self, change: i64) -> None:
        self.size += change
        self._runtime.held_bytes += change

    def confirm_before(self, first: i64) -> None:
        """The peer has all commands before `first`."""
        sent = self.sent
        while sent and sent[0].id < first:
            self._count(-(sent.popleft().size + SENT_BYTES))

    def confirm(self, spans: Spans) -> None:
        """The peer has these commands."""
        sent = self.sent
        while sent and spans.has(sent[0].id):
            self._count(-(sent.popleft().size + SENT_BYTES))
        if not sent or not spans.lasts or spans.lasts[-1] < sent[0].id:
            return
        # The peer has received some in the middle before others.
        self._runtime.work_left -= len(sent) >> SCAN_UNIT_BITS
        size: i64 = 0
        kept: list[Sent] = []
        for one in sent:
            if not spans.has(one.id):
                kept.append(one)
                size += one.size + SENT_BYTES
        self.sent = deque(kept)
        self._count(size - self.size)

    def clear(self) -> None:
        self.sent = deque()
        self._count(-self.size)
