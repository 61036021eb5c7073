"""Jobs and the transactions of Django's database."""

from __future__ import annotations

from collections.abc import Callable

from django.db import transaction

from waybill.django.connection import jobs
from waybill.ojs import Envelope, NewJob


def on_commit(
    job: NewJob | Envelope | dict[str, object],
    *,
    using: str | None = None,
    pushed: Callable[[str], object] | None = None,
) -> None:
    """Push a job when the transaction commits, and never if it does not; at once outside of a transaction.

    The job is checked now: raises InvalidJob naming the field. `pushed` is called with its id. If the broker cannot be
    reached then, PushFailed comes out of the commit, whose data is safe; if the process dies in between, the job is
    missing. The outbox has neither gap. An `async` view calls it as it calls the ORM: with `sync_to_async`.
    """
    made = jobs.make(job)

    def push() -> None:
        jobs.sync.push_many([made])
        if pushed is not None:
            pushed(made.envelope.id)

    transaction.on_commit(push, using=using)
