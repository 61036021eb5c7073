"""The exchange type `x-local-random` (RabbitMQ 4): each message goes to a random bound queue.

The core has no source of chance. What chooses here is xorshift, begun with the exchange's name: no key or order of
messages decides where one goes, and a simulation replays the same choices.
"""

import zlib
from typing import Final

from waybill.model.binding import QUEUE, Binding
from waybill.model.errors import InvalidArgument
from waybill.model.exchange import Exchange

WORD: Final = 0xFFFFFFFF
STEPS_MAX_OF_A_CHANGE: Final = 16_384


class LocalRandomExchange(Exchange):
    """Bindings have an empty key and lead to queues. All queues of a node are local."""

    type = "x-local-random"
    # Each message is matched separately: a cached route would always choose the same queue.
    routes_by_headers = True

    def __init__(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        super().__init__(name, durable, auto_delete, internal, arguments)
        self._state = zlib.crc32(name.encode("utf-8", "surrogateescape")) | 1
        self._choices: list[Binding] = []

    def check(self, binding: Binding) -> None:
        if binding.routing_key:
            raise InvalidArgument(f"Non empty binding '{binding.routing_key}' key not permitted")
        if binding.destination_kind != QUEUE:
            raise InvalidArgument(f"an exchange of type {self.type} leads to queues only")

    def add(self, binding: Binding) -> None:
        super().add(binding)
        self._choices = []

    def remove(self, binding: Binding) -> None:
        super().remove(binding)
        self._choices = []

    def match(self, routing_key: str, headers: dict[str, object], steps_max: int) -> list[Binding]:
        self.steps = 0
        if not self._choices:
            self._choices = list(self.bindings.values())
            # Never refuse the message for this: its publisher may not have created the bindings.
            self.steps = min(len(self._choices) >> 3, STEPS_MAX_OF_A_CHANGE)
        choices = self._choices
        if not choices:
            return []
        state = self._state
        state ^= state << 13 & WORD
        state ^= state >> 17
        state ^= state << 5 & WORD
        self._state = state
        return [choices[state % len(choices)]]
