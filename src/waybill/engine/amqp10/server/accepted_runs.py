"""Accepts deliveries of the peer in runs: one disposition for consecutive deliveries of a batch of input.

If any delivery of a batch must be durable, its dispositions are sent after the commit.
"""

from collections import deque
from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.session_host import SessionHost
from waybill.engine.server_engine import Confirming
from waybill.model.store import CommitWaiter
from waybill.wire.amqp10.disposition import ACCEPTED_STATE
from waybill.wire.amqp10.performatives import Performative

WRAP: Final = 0xFFFFFFFF
NO_DELIVERY: Final = -1


class AcceptedRuns(Confirming):
    """The accepted deliveries of one session whose disposition has not been sent."""

    def __init__(self, connection: SessionHost, channel: i64) -> None:
        self._connection = connection
        self._channel: i64 = channel
        self._is_open = True
        self._runs: list[tuple[i64, i64, bool]] = []
        self._first: i64 = NO_DELIVERY
        self._last: i64 = NO_DELIVERY
        self._settles = True
        self._is_confirming = False
        self._needs_commit = False
        self._waiting: deque[list[tuple[i64, i64, bool]]] = deque()

    def add(self, delivery_id: i64, *, settles: bool) -> None:
        """Accept a delivery, after the commit of this batch if `wait_for_commit` was called in it.

        `settles`: settle it too, as the first of the two ends.
        """
        if delivery_id == (self._last + 1) & WRAP and self._first != NO_DELIVERY and settles == self._settles:
            self._last = delivery_id
            return
        self._end_run()
        self._first = delivery_id
        self._last = delivery_id
        self._settles = settles
        if not self._is_confirming:
            self._is_confirming = True
            self._connection.confirming(self)

    def wait_for_commit(self) -> None:
        """This batch of input has put something in the store."""
        self._needs_commit = True

    def close(self) -> None:
        """Send nothing any more."""
        self._is_open = False

    def _end_run(self) -> None:
        if self._first != NO_DELIVERY:
            self._runs.append((self._first, self._last, self._settles))
            self._first = NO_DELIVERY
            self._last = NO_DELIVERY

    def settle_confirms(self) -> None:
        self._is_confirming = False
        self._end_run()
        runs = self._runs
        self._runs = []
        if not self._is_open or not runs:
            return
        if self._needs_commit or self._waiting:
            self._needs_commit = False
            self._waiting.append(runs)
            self._connection.host.runtime.store.wait(self, 0)
        else:
            self._send(runs)

    def committed(self, mark: i64) -> None:
        runs = self._waiting.popleft()
        if self._is_open:
            self._send(runs)

    def _send(self, runs: list[tuple[i64, i64, bool]]) -> None:
        for first, last, settles in runs:
            self._connection.send_disposition(
                self._channel, first, last, ACCEPTED_STATE, settled=settles, receiver=True
            )

    def send_after(self, performative: Performative) -> None:
        """Send a performative after the outcomes of all that came before it."""
        self.settle_confirms()
        if self._waiting:
            self._connection.host.runtime.store.wait(_Later(self, performative), 0)
        else:
            self.send(performative)

    def send(self, performative: Performative) -> None:
        if self._is_open and not self._connection.is_over:
            self._connection.send_performative(self._channel, performative)


class _Later(CommitWaiter):
    """A performative that is sent once the commit is done that outcomes before it wait for."""

    def __init__(self, runs: AcceptedRuns, performative: Performative) -> None:
        self._runs = runs
        self._performative = performative

    def committed(self, mark: i64) -> None:
        self._runs.send(self._performative)
