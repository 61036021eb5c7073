"""Deduplication of a queue with `x-message-deduplication`: of messages with equal keys, only one is in it at a time.

The key is the header `x-deduplication-header` or, for jobs, `x-ojs-idempotency-key`. A key is free again once its
message is settled, dropped or dead-lettered.
"""

from typing import Final

from waybill.model.message import Message

KEY_HEADERS: Final = ("x-deduplication-header", "x-ojs-idempotency-key")


class Deduplication:
    """The keys of the messages in one queue, ready or unsettled, by sequence."""

    def __init__(self) -> None:
        self._keys: dict[int, str] = {}
        self._held: set[str] = set()

    def admit(self, message: Message, sequence: int) -> bool:
        """Record the message's key. False if another message has it: drop this one."""
        headers = message.format.headers(message.content)
        for name in KEY_HEADERS:
            value = headers.get(name)
            if value is not None:
                key = f"{name}={value}"
                if key in self._held:
                    return False
                self._held.add(key)
                self._keys[sequence] = key
                return True
        return True

    def forget(self, sequence: int) -> None:
        """Free the key of a message that is gone."""
        key = self._keys.pop(sequence, None)
        if key is not None:
            self._held.discard(key)
