"""An outbox in Django's database: jobs are enqueued if and only if their transaction commits.

    with transaction.atomic():
        order.save()
        outbox.add(send_receipt.job(order.pk))

`manage.py waybill_outbox` pushes committed jobs in the order of their rows, and deletes a row after the broker has
confirmed its job. After a crash in between, the job is pushed again with the same id.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from django.db import DatabaseError, transaction
from django.db.models import Q

from waybill.client import ClientError
from waybill.django.connection import fresh_connections, jobs
from waybill.django.models import OutboxJob, OutboxTurn
from waybill.ojs import Envelope, NewJob, PushFailed
from waybill.ojs.push.outbox_rows import BATCH, OutboxPublisher, row_of
from waybill.ojs.spec.identifiers import new_id

POLL_SECONDS: Final = 0.2
ERROR_PAUSE_SECONDS: Final = 1.0
LEASE_SECONDS: Final = 30.0
_LEASE_ROW: Final = 1

_log = logging.getLogger("waybill.django.outbox")


def add(job: NewJob | Envelope | dict[str, object], *, using: str | None = None) -> Envelope:
    """Store a job in the transaction of this thread, and return its envelope. Raises InvalidJob with the field."""
    made = jobs.make(job)
    job_id, envelope, options = row_of(made)
    OutboxJob.objects.using(using).create(job_id=job_id, envelope=envelope, options=options)
    return made.envelope


class DjangoOutboxRelay:
    """Pushes the jobs of committed transactions. Any number of relays may run; one at a time is active."""

    def __init__(self, using: str | None = None) -> None:
        """`using` is the alias of the database."""
        self.published_count = 0
        self._using = using
        self._id = new_id()
        self._publisher = OutboxPublisher()

    def publish_batch(self) -> int:
        """Push up to BATCH jobs. Returns the number of finished rows, which is 0 if another relay is active.

        Raises the errors of the database, and PushFailed if no job was pushed.
        """
        if not self._acquire_lease():
            return 0
        waiting = OutboxJob.objects.using(self._using).filter(error=None, pk__gt=self._publisher.after)
        rows: list[tuple[int, str, str]] = list(waiting.order_by("pk").values_list("pk", "envelope", "options")[:BATCH])
        if not rows:
            self._publisher.begin_again()
            return 0
        done, errors = jobs.sync.call(lambda here: self._publisher.publish(rows, here.push_many), "publish_batch()")
        with transaction.atomic(using=self._using):
            OutboxJob.objects.using(self._using).filter(pk__in=done).delete()
            for number, text in errors.items():
                OutboxJob.objects.using(self._using).filter(pk=number).update(error=text)
        self.published_count += len(done)
        return len(done) + len(errors)

    def publish_all(self) -> int:
        """Push all stored jobs, and return how many were pushed."""
        before = self.published_count
        while self.publish_batch():
            pass
        self._release_lease()
        return self.published_count - before

    def run(self, stopped: threading.Event) -> None:
        """Push until `stopped` is set. Retries after errors of the database and of the broker."""
        pause = 0.0
        while not stopped.wait(pause):
            try:
                with fresh_connections():
                    pause = 0.0 if self.publish_batch() else POLL_SECONDS
            except (DatabaseError, PushFailed, ClientError, OSError) as error:
                _log.warning("the outbox is delayed, trying again: %r", error)
                pause = ERROR_PAUSE_SECONDS
            except Exception:  # noqa: BLE001 - a middleware may raise anything; the jobs stay in the outbox
                _log.exception("the outbox is delayed, trying again")
                pause = ERROR_PAUSE_SECONDS
        self._release_lease()

    def _acquire_lease(self) -> bool:
        leases = OutboxTurn.objects.using(self._using)
        leases.get_or_create(pk=_LEASE_ROW)
        now = time.time()
        mine = leases.filter(Q(owner=self._id) | Q(until__lt=now), pk=_LEASE_ROW)
        return bool(mine.update(owner=self._id, until=now + LEASE_SECONDS))

    def _release_lease(self) -> None:
        OutboxTurn.objects.using(self._using).filter(pk=_LEASE_ROW, owner=self._id).update(until=0.0)
