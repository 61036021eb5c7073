"""Pushes jobs when a transaction of Django's database commits."""

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
    """Push a job when the transaction commits; immediately outside of a transaction.

    The job is checked now: raises InvalidJob with the field. `pushed` is called with its id. If the broker cannot be
    reached after the commit, the commit raises PushFailed, although its data is stored; if the process dies in between,
    the job is lost. The outbox has neither problem. In async views, call it with `sync_to_async`, like the ORM.
    """
    made = jobs.make(job)

    def push() -> None:
        jobs.sync.push_many([made])
        if pushed is not None:
            pushed(made.envelope.id)

    transaction.on_commit(push, using=using)
