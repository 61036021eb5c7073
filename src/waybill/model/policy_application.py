"""Applies changed policies to the queues and exchanges of a virtual host."""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from waybill.model.exchange import Exchange
from waybill.model.policy import Policies
from waybill.model.queue import Queue
from waybill.model.runtime import Chore, Runtime

STEPS_PER_UNIT_BITS: Final = 7


class PolicyApplication(Chore):
    """Entities declared while it runs have the new settings from the start.

    `routes_changed` is called whenever exchanges get another alternate exchange.
    """

    def __init__(
        self,
        runtime: Runtime,
        policies: Policies,
        queues: list[Queue],
        exchanges: list[Exchange],
        routes_changed: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._policies = policies
        self._queues = queues
        self._exchanges = exchanges
        self._routes_changed = routes_changed
        patterns: i64 = 0
        for policy in [*policies.policies.values(), *policies.operator_policies.values()]:
            patterns += len(policy.pattern.text)
        self._pattern_size: i64 = patterns

    def stop(self) -> None:
        """The policies have changed again: another application starts over."""
        self._queues = []
        self._exchanges = []

    def work(self) -> bool:
        runtime = self._runtime
        policies = self._policies
        if self._exchanges:
            self._routes_changed()
        while self._queues or self._exchanges:
            if runtime.work_left <= 0:
                return False
            if self._exchanges:
                exchange = self._exchanges.pop()
                self._charge(exchange.name)
                exchange.alternate = policies.alternate_of(exchange.name, exchange.arguments)
                continue
            queue = self._queues.pop()
            if not queue.is_deleted:
                self._charge(queue.name)
                queue.set_policy(policies.queue_settings(queue.policy.type, queue.name, queue.arguments))
        return True

    def _charge(self, name: str) -> None:
        """Charge for matching each pattern against the name."""
        self._runtime.work_left -= 1 + (self._pattern_size * len(name) >> STEPS_PER_UNIT_BITS)
