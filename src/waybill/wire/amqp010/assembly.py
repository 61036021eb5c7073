"""Assembles frames into controls and commands, separately for each channel.

    command segment | header segment | body segment        a command, on track 1; header and body may be missing
    control segment                                        a control, on track 0

A segment has any number of frames. Controls may come between the frames of a command.
"""

from typing import Final

from mypy_extensions import i64

from waybill.wire.amqp010.errors import FrameError
from waybill.wire.amqp010.frames import (
    BODY,
    CONTROL,
    CONTROL_TRACK,
    FIRST_FRAME,
    FIRST_SEGMENT,
    HEADER,
    LAST_FRAME,
    LAST_SEGMENT,
    MAX_FRAME_SIZE,
    WHOLE,
    FrameFacts,
    scan_frame,
)

MAX_OPERATION_SIZE: Final = 1 << 20
"""Octets of a control, a command or a header segment."""
MAX_BODY_SIZE: Final = 128 << 20
MAX_ASSEMBLY_SIZE: Final = 256 << 20
"""Octets of all unfinished assemblies of a connection."""
INCOMPLETE: Final = -1
_NOTHING: Final = -1


class _Track:
    """The unfinished assembly on one track of a channel. `parts` are the frames of the unfinished segment."""

    def __init__(self) -> None:
        self.kind: i64 = _NOTHING
        self.flags: i64 = 0
        self.is_inside = False
        self.parts = bytearray()
        self.operation = b""
        self.header: bytes | None = None
        self.body: bytes | None = None
        self.size: i64 = 0

    def clear(self) -> None:
        self.kind = _NOTHING
        self.is_inside = False
        self.parts = bytearray()
        self.operation = b""
        self.header = None
        self.body = None
        self.size = 0


class Assembler:
    """Takes frames. Whenever one ends a control or command, that is in the attributes until the next call.

    `payload` is the operation segment; `header` and `body` are None without such a segment. `max_frame_size` counts
    until `connection.tune-ok` changes it.
    """

    def __init__(
        self,
        max_frame_size: int = MAX_FRAME_SIZE,
        channel_max: int = 0xFFFF,
        max_body_size: int = MAX_BODY_SIZE,
        max_assembly_size: int = MAX_ASSEMBLY_SIZE,
    ) -> None:
        self.max_frame_size: i64 = max_frame_size
        self.channel_max: i64 = channel_max
        self.max_body_size: i64 = max_body_size
        self.max_assembly_size: i64 = max_assembly_size
        self.is_complete = False
        self.is_control = False
        self.channel: i64 = 0
        self.payload = b""
        self.header: bytes | None = None
        self.body: bytes | None = None
        self.size: i64 = 0
        self._facts = FrameFacts()
        self._tracks: dict[int, _Track] = {}
        self._last: _Track | None = None
        self._last_key: i64 = _NOTHING

    def take_frame(self, data: bytes, offset: i64) -> i64:
        """Take the frame at `offset`. Returns the offset after it, INCOMPLETE if it has not arrived as a whole.

        Raises FrameError for a frame that is malformed or not allowed here.
        """
        self.is_complete = False
        facts = self._facts
        if not scan_frame(data, offset, self.max_frame_size, facts):
            return INCOMPLETE
        channel = facts.channel
        if channel > self.channel_max:
            raise FrameError(f"channel {channel} where {self.channel_max} is the last")
        payload = data[facts.payload : facts.end]
        self.channel = channel
        if facts.flags == WHOLE:
            self._take_whole(payload)
        else:
            self._take_part(self._track(channel * 2 + facts.track), payload)
        return facts.end

    def drop(self, channel: int) -> None:
        """Drop the unfinished command of a channel: its session was detached."""
        for key in (channel * 2, channel * 2 + 1):
            track = self._tracks.pop(key, None)
            if track is not None:
                self.size -= track.size
        self._last = None
        self._last_key = _NOTHING

    def _take_whole(self, payload: bytes) -> None:
        """A control or command in a single frame: nothing is kept."""
        facts = self._facts
        key = facts.channel * 2 + facts.track
        if facts.type >= HEADER:
            raise FrameError(f"an assembly that begins with a segment of type {facts.type}")
        track = self._tracks.get(key)
        if track is not None and track.kind != _NOTHING:
            raise FrameError("an assembly begins before the one before it has ended")
        self.payload = payload
        self.header = None
        self.body = None
        self.is_control = facts.type == CONTROL
        self.is_complete = True

    def _track(self, key: i64) -> _Track:
        last = self._last
        if last is not None and self._last_key == key:
            return last
        track = self._tracks.get(key)
        if track is None:
            track = self._tracks[key] = _Track()
        self._last = track
        self._last_key = key
        return track

    def _take_part(self, track: _Track, payload: bytes) -> None:
        facts = self._facts
        flags = facts.flags
        if track.is_inside:
            is_same = facts.type == track.kind and (flags ^ track.flags) & (FIRST_SEGMENT | LAST_SEGMENT) == 0
            if flags & FIRST_FRAME or not is_same:
                raise FrameError("a frame of another segment before the last frame of this one")
        else:
            self._begin_segment(track)
        added: i64 = len(payload)
        track.size += added
        self.size += added
        if self.size > self.max_assembly_size:
            raise FrameError(f"more than {self.max_assembly_size} octets of unfinished commands")
        if flags & LAST_FRAME:
            if track.is_inside:
                track.parts += payload
                self._check_size(track, len(track.parts))
                payload = bytes(track.parts)
                track.parts = bytearray()
                track.is_inside = False
            else:
                self._check_size(track, added)
            self._end_segment(track, payload)
        else:
            track.is_inside = True
            track.parts += payload
            self._check_size(track, len(track.parts))

    def _begin_segment(self, track: _Track) -> None:
        facts = self._facts
        flags = facts.flags
        if not flags & FIRST_FRAME:
            raise FrameError("a segment without its first frame")
        if flags & FIRST_SEGMENT:
            if track.kind != _NOTHING:
                raise FrameError("an assembly begins before the one before it has ended")
            if facts.type >= HEADER:
                raise FrameError(f"an assembly that begins with a segment of type {facts.type}")
            if facts.type == CONTROL and not flags & LAST_SEGMENT:
                raise FrameError("a control has one segment")
        elif facts.type < HEADER or facts.type <= track.kind or track.kind == _NOTHING:
            raise FrameError(f"a segment of type {facts.type} that is not the first one cannot come here")
        elif facts.type == BODY and not flags & LAST_SEGMENT:
            raise FrameError("the body is the last segment")
        track.kind = facts.type
        track.flags = flags

    def _check_size(self, track: _Track, size: i64) -> None:
        limit: i64 = self.max_body_size if track.kind == BODY else MAX_OPERATION_SIZE
        if size > limit:
            raise FrameError(f"a segment of more than {limit} octets")

    def _end_segment(self, track: _Track, payload: bytes) -> None:
        if track.kind == HEADER:
            track.header = payload
        elif track.kind == BODY:
            track.body = payload
        else:
            track.operation = payload
        if track.flags & LAST_SEGMENT:
            self.is_control = self._facts.track == CONTROL_TRACK
            self.payload = track.operation
            self.header = track.header
            self.body = track.body
            self.size -= track.size
            track.clear()
            self.is_complete = True
