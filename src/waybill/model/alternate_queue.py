"""A queue with an alternate exchange (0-10): it keeps its unsettled deliveries, in case it is deleted.

When the queue is deleted, ready messages and unsettled deliveries go to the alternate exchange immediately, without
waiting for consumers, so a crash loses nothing. Later outcomes of these deliveries are ignored. Messages accepted in a
branch of a distributed transaction stay with the branch.
"""

from mypy_extensions import i64

from waybill.model.entry import NO_LOCATION, Entry
from waybill.model.errors import DamagedMessage, ReadPostponed
from waybill.model.message_queue import MessageQueue
from waybill.model.paging import page_in
from waybill.model.queue import QueueHost
from waybill.model.runtime import Runtime


class AlternateQueue(MessageQueue):
    """`out`: unsettled deliveries, by sequence. A delivery that is settled and not in `out` was moved before."""

    def __init__(  # noqa: PLR0913
        self,
        host: QueueHost,
        runtime: Runtime,
        name: str,
        queue_id: i64,
        *,
        durable: bool,
        auto_delete: bool,
        owner: object | None,
        arguments: dict[str, object],
    ) -> None:
        super().__init__(
            host, runtime, name, queue_id, durable=durable, auto_delete=auto_delete, owner=owner, arguments=arguments
        )
        self.keeps_track = True
        self.out: dict[i64, Entry] = {}
        self._is_ending = False
        self._to_move: list[i64] = []

    # --- deliveries ---

    def handed_out(self, entries: list[Entry]) -> None:
        out = self.out
        for entry in entries:
            out[entry.sequence] = entry

    def handed_back(self, entries: list[Entry]) -> None:
        for entry in entries:
            del self.out[entry.sequence]

    def take(self, no_ack: bool) -> Entry | None:
        entry = super().take(no_ack)
        if entry is not None and not no_ack:
            self.out[entry.sequence] = entry
        return entry

    def claim(self, sequence: i64) -> Entry | None:
        entry = super().claim(sequence)
        if entry is not None:
            self.out[entry.sequence] = entry
        return entry

    def begin_drain(self) -> bool:
        """False while the queue is being deleted."""
        return not self._is_ending and super().begin_drain()

    # --- outcomes ---

    def accept(self, entry: Entry) -> None:
        self.out.pop(entry.sequence, None)
        super().accept(entry)

    def accept_all(self, entries: list[Entry]) -> None:
        out = self.out
        for entry in entries:
            out.pop(entry.sequence, None)
        super().accept_all(entries)

    def reject(self, entry: Entry) -> None:
        if entry.sequence not in self.out:
            super().accept(entry)
            return
        before = self.unsettled_count
        super().reject(entry)
        if self.unsettled_count < before:
            # Otherwise it waits for a read from the disk.
            self.out.pop(entry.sequence, None)

    def release(self, entry: Entry, *, failed: bool) -> None:
        if entry.sequence not in self.out:
            super().accept(entry)
            return
        before = self.unsettled_count
        super().release(entry, failed=failed)
        if self.unsettled_count < before:
            self.out.pop(entry.sequence, None)

    def undeliverable(self, entry: Entry, *, is_settled: bool) -> None:
        self.out.pop(entry.sequence, None)
        super().undeliverable(entry, is_settled=is_settled)

    # --- deletion ---

    def has_moved_deliveries(self) -> bool:
        self._is_ending = True
        if not self._to_move:
            self._to_move = sorted(self.out, reverse=True)
        while self._to_move:
            if self.runtime.work_left <= 0:
                return False
            self.runtime.work_left -= 1
            entry = self.out.get(self._to_move.pop())
            if entry is not None and self._is_whole(entry) and entry.holder is not None:
                self._move(entry)
        return True

    def _is_whole(self, entry: Entry) -> bool:
        """Whether its content is in memory, or was read: the copy on the disk is deleted with the queue."""
        if not entry.is_paged_out:
            return True
        try:
            page_in(self.runtime, entry)
        except (ReadPostponed, DamagedMessage):
            self.report_skipped(1)
            self.out.pop(entry.sequence, None)
            return False
        return True

    def _move(self, entry: Entry) -> None:
        messages = self.messages
        with messages.atomic():
            self.host.send_to_alternate(self, entry.message)
            if entry.is_stored:
                messages.settle(self.id, entry.sequence, entry.location)
            elif entry.location != NO_LOCATION:
                messages.forget(entry.location)
        entry.is_stored = False
        entry.location = NO_LOCATION
        self.out.pop(entry.sequence, None)
