"""Publishes that wait for their confirm.

The server numbers publishes on a confirm channel from 1 and answers with basic.ack or basic.nack, one or (multiple) all
up to a number, mostly in order. So the waiting publishes are a window of a list. The start of the window moves past
settled publishes, and the list is cut when the part before the window is larger than the window.

A basic.return carries no number. It comes before the confirm of its message and returns come in the order of
publishing, so it belongs to the first waiting message with the same address, properties and body; two messages that are
equal in all of these are interchangeable for their publisher too.
"""

from typing import Final

CUT_AT: Final = 4096

Content = tuple[str, str, bytes, bytes]
"""Exchange, routing key, encoded properties, body: they identify a returned message."""


class Confirms:
    """The unconfirmed publishes of one channel, each with a token of the caller."""

    def __init__(self) -> None:
        self._tokens: list[object | None] = []
        # Only for mandatory messages, because only those are returned.
        self._contents: list[Content | None] = []
        self._start = 0
        self._next_number = 1

    def __len__(self) -> int:
        return len(self._tokens) - self._start

    def add(self, token: object, content: Content | None) -> None:
        """The next number belongs to `token`. `content` is given for a mandatory message."""
        self._next_number += 1
        self._tokens.append(token)
        self._contents.append(content)

    def settle(self, number: int, multiple: bool) -> list[object]:  # noqa: FBT001 - the bit of basic.ack
        """The tokens that an answer for `number` settles, in order. `number` 0 with `multiple` means all.

        Raises ValueError for a number that was never published; one that is already settled has no effect.
        """
        tokens = self._tokens
        if number >= self._next_number or number < 0 or (number == 0 and not multiple):
            raise ValueError(f"a confirm for publish {number}, of {self._next_number - 1}")
        index = len(tokens) - self._next_number + number if number else len(tokens) - 1
        start = self._start
        if index < start:
            return []
        if index == start or multiple:
            settled = tokens[start : index + 1]
            self._start = index + 1
            self._skip_settled()
        else:
            settled = [tokens[index]]
            tokens[index] = None
            self._contents[index] = None
        return [token for token in settled if token is not None]

    def settle_all(self) -> list[object]:
        """Remove and return the tokens of all waiting publishes."""
        waiting = [token for token in self._tokens[self._start :] if token is not None]
        self._tokens.clear()
        self._contents.clear()
        self._start = 0
        return waiting

    @property
    def next_number(self) -> int:
        """The number of the next publish."""
        return self._next_number

    def waiting_below(self, number: int) -> list[object]:
        """The tokens of waiting publishes before `number`. They keep waiting: an answer may still come."""
        end = len(self._tokens) - self._next_number + number
        return [token for token in self._tokens[self._start : max(end, self._start)] if token is not None]

    def take_returned(self, content: Content) -> object | None:
        """Remove and return the token of a returned message; None if there is none."""
        found = -1
        for index in range(self._start, len(self._tokens)):
            candidate = self._contents[index]
            if candidate is None:
                continue
            if candidate == content:
                found = index
                break
            # A broker may encode the properties differently. An exact match, further on, is preferred.
            if found < 0 and candidate[0] == content[0] and candidate[1] == content[1] and candidate[3] == content[3]:
                found = index
        if found < 0:
            return None
        token = self._tokens[found]
        self._tokens[found] = None
        self._contents[found] = None
        return token

    def _skip_settled(self) -> None:
        tokens = self._tokens
        size = len(tokens)
        start = self._start
        # A token that is None was settled out of order or returned; a returned one still gets its confirm, and
        # settle() finds nothing to do then.
        while start < size and tokens[start] is None:
            start += 1
        self._start = start
        if start == size or (start >= CUT_AT and start * 2 >= size):
            del tokens[:start]
            del self._contents[:start]
            self._start = 0
