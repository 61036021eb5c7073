"""Deduplication: a queue with `x-message-deduplication` holds one message of each key at a time.

The key is the header `x-deduplication-header` or, for jobs, `x-ojs-idempotency-key`. A key is free again once its
message is settled, dropped or dead-lettered.
"""

import hashlib
from typing import Final

from waybill.model.message import Message
from waybill.model.runtime import Runtime

KEY_HEADERS: Final = ("x-deduplication-header", "x-ojs-idempotency-key")


KEY_BYTES: Final = 300
"""The memory of a key."""
_LONG_KEY: Final = 64
_REMEMBERED_MAX_OCTETS: Final = 1 << 20


class Deduplication:
    """The keys of the messages in one queue, ready or unsettled, by sequence.

    They stay in memory when their messages are on the disk, so they count as memory of messages, and long ones are
    replaced by their hash.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._keys: dict[int, str] = {}
        self._held: set[str] = set()

    def admit(self, message: Message, sequence: int) -> bool:
        """Record the message's key. False if another message has it: drop this one."""
        runtime = self._runtime
        key = runtime.deduplication_key if runtime.deduplicated is message else self._read(message)
        if not key:
            return True
        if key in self._held:
            return False
        self._held.add(key)
        self._keys[sequence] = key
        runtime.memory_bytes += KEY_BYTES
        return True

    def keys(self) -> set[str]:
        """The keys that are held."""
        return self._held

    def _read(self, message: Message) -> str:
        """The message's key, empty if it has none."""
        content = message.content
        self._runtime.work_left -= message.header_units()
        headers = message.format.headers(content)
        key = ""
        for name in KEY_HEADERS:
            value = headers.get(name)
            if value is not None:
                key = _short(f"{name}={value}")
                break
        if len(content) <= _REMEMBERED_MAX_OCTETS:
            self._runtime.deduplicated = message
            self._runtime.deduplication_key = key
        return key

    def forget(self, sequence: int) -> None:
        """Free the key of a message that has left the queue."""
        key = self._keys.pop(sequence, None)
        if key is not None:
            self._held.discard(key)
            self._runtime.memory_bytes -= KEY_BYTES


def _short(key: str) -> str:
    if len(key) <= _LONG_KEY:
        return key
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=24).hexdigest()
