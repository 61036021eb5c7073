"""The tables of the outbox, and what the admin page of jobs hangs on."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class OutboxJob(models.Model):
    """A job that a committed transaction has left to be pushed; `error` says why it never can be."""

    job_id = models.CharField(max_length=36)
    envelope = models.TextField()
    options = models.TextField()
    error = models.TextField(null=True, blank=True)  # noqa: DJ001 - the index below is of those without
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        """Oldest first."""

        ordering: ClassVar = ["id"]
        verbose_name = "job in the outbox"
        verbose_name_plural = "jobs in the outbox"

    def __str__(self) -> str:
        """Name the job."""
        return self.job_id


class OutboxTurn(models.Model):
    """Which process publishes what the outbox holds, and until when its turn lasts, in seconds since 1970."""

    owner = models.CharField(max_length=36, default="")
    until = models.FloatField(default=0.0)

    def __str__(self) -> str:
        """Name the process."""
        return self.owner


class Job(models.Model):
    """A job as a coordinator knows it. There is no such table: the admin page asks the coordinator."""

    class Meta:
        """Permissions, and nothing else."""

        managed = False
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        """Name the job."""
        return str(self.pk)
