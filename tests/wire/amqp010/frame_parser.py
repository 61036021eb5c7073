"""Parses frames of AMQP 0-10 into controls and commands, for peers in tests."""

from waybill.wire.amqp010.assembly import INCOMPLETE, Assembler
from waybill.wire.amqp010.frames import MAX_FRAME_SIZE


class Assembled:
    """One control or command: `payload` is its operation segment; `header`, `body` are None without such a segment."""

    def __init__(
        self, channel: int, payload: bytes, header: bytes | None, body: bytes | None, *, is_control: bool
    ) -> None:
        self.channel = channel
        self.is_control = is_control
        self.payload = payload
        self.header = header
        self.body = body


class FrameParser:
    """An assembler with a buffer."""

    def __init__(self, max_frame_size: int = MAX_FRAME_SIZE, channel_max: int = 0xFFFF) -> None:
        self.assembler = Assembler(max_frame_size, channel_max)
        self._data = b""

    @property
    def waiting(self) -> int:
        """The number of octets of incomplete frames."""
        return len(self._data)

    def receive(self, data: bytes) -> None:
        """Add received octets."""
        self._data += data

    def next(self) -> Assembled | None:
        """The next control or command, None if more octets are needed. Raises FrameError."""
        assembler = self.assembler
        data = self._data
        offset = 0
        found: Assembled | None = None
        while found is None:
            end = assembler.take_frame(data, offset)
            if end == INCOMPLETE:
                break
            offset = end
            if assembler.is_complete:
                found = Assembled(
                    assembler.channel,
                    assembler.payload,
                    assembler.header,
                    assembler.body,
                    is_control=assembler.is_control,
                )
        self._data = data[offset:]
        return found
