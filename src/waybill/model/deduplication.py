"""Deduplication of a queue with `x-message-deduplication`: of messages with equal keys, only one is in it at a time.

The key is the header `x-deduplication-header` or, for jobs, `x-ojs-idempotency-key`. A key is free again once its
message is settled, dropped or dead-lettered.
"""

from typing import Final

from waybill.model.message import Message

KEY_HEADERS: Final = ("x-deduplication-header", "x-ojs-idempotency-key")


class Deduplication:
    """The keys of the messages of one queue, waiting or delivered, by their sequences."""

    def __init__(self) -> None:
        self._keys: dict[int, str] = {}
        self._held: set[str] = set()

    def admit(self, message: Message, sequence: int) -> bool:
        """Note the message's key. False if a message with that key is there: this one is to be dropped."""
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
        """The message is gone."""
        key = self._keys.pop(sequence, None)
        if key is not None:
            self._held.discard(key)
