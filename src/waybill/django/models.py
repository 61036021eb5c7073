"""The tables of the outbox, and the model behind the admin page of jobs."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class OutboxJob(models.Model):
    """A job of a committed transaction that waits to be pushed. `error` says why it cannot be pushed."""

    job_id = models.CharField(max_length=36)
    envelope = models.TextField()
    options = models.TextField()
    error = models.TextField(null=True, blank=True)  # noqa: DJ001 - null marks rows without an error, which the index covers
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        """Oldest first."""

        ordering: ClassVar = ["id"]
        verbose_name = "job in the outbox"
        verbose_name_plural = "jobs in the outbox"

    def __str__(self) -> str:
        return self.job_id


class OutboxTurn(models.Model):
    """The lease of the relay that publishes the outbox: one row. `until` is in seconds since 1970."""

    owner = models.CharField(max_length=36, default="")
    until = models.FloatField(default=0.0)

    def __str__(self) -> str:
        return self.owner


class Job(models.Model):
    """A job as a coordinator knows it. It has no table: the admin page asks the coordinator."""

    class Meta:
        """Permissions without a table."""

        managed = False
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return str(self.pk)
