"""What was sent in a session that may outlive its connection, until the peer says that it has it."""

from collections import deque
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.model.runtime import Runtime
from waybill.wire.amqp010.codec import write_command

REPLAY_BYTES_MAX: Final = 4 << 20
"""Deliveries wait while so much of a session is not confirmed."""
REPLAY_COUNT_MAX: Final = 16_384
SENT_BYTES: Final = 200


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
        return self.size > 0 and self._runtime.held_bytes > self._runtime.held_limit_bytes

    def add(self, sent: Sent) -> None:
        self.sent.append(sent)
        self._count(sent.size + SENT_BYTES)

    def _count(self, change: i64) -> None:
        self.size += change
        self._runtime.held_bytes += change

    def confirmed(self, first: i64, last: i64) -> None:
        """The peer has all commands from `first` to `last`."""
        sent = self.sent
        while sent and sent[0].id <= last:
            if sent[0].id < first:
                break
            self._count(-(sent.popleft().size + SENT_BYTES))
        if sent and sent[0].id < first and sent[-1].id >= first:
            kept = [one for one in sent if not first <= one.id <= last]
            self.sent = deque(kept)
            size: i64 = 0
            for one in kept:
                size += one.size + SENT_BYTES
            self._count(size - self.size)

    def clear(self) -> None:
        self.sent = deque()
        self._count(-self.size)

    def write_from(self, out: BytesWriter, channel: i64, first: i64, max_frame_size: i64) -> None:
        """Write all commands from the count `first` on."""
        for one in self.sent:
            if one.id >= first:
                write_command(out, channel, one.payload, one.header, one.body, max_frame_size)
