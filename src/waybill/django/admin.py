"""Admin pages for the jobs of a queue, which a coordinator lists, and for the outbox."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from waybill.client import ClientError
from waybill.django.connection import jobs
from waybill.django.models import Job, OutboxJob
from waybill.ojs import JobInfo, JobsError, State

LIMIT: Final = 100


@admin.register(OutboxJob)
class OutboxJobAdmin(admin.ModelAdmin):
    """Jobs that wait for a relay, and jobs that cannot be pushed."""

    list_display = ("job_id", "created_at", "error")
    list_filter = ("created_at",)
    search_fields = ("job_id",)
    readonly_fields = ("job_id", "envelope", "options", "created_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """False: programs add jobs."""
        return False


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    """The newest jobs of a queue. Users with the permission to change jobs can cancel them."""

    change_list_template = "admin/waybill/jobs.html"
    states: ClassVar = [state.value for state in State]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """False: programs push jobs."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """False: the history of jobs cannot be deleted."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the jobs of a queue, or cancel one."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        queues = sorted({handler.queue for handler in jobs.handlers.values()} or {"default"})
        queue = request.GET.get("queue") or queues[0]
        if request.method == "POST":
            return self._cancel(request, queue)
        state = request.GET.get("state", "")
        context = {
            **self.admin_site.each_context(request),
            **(extra_context or {}),
            "title": f"Jobs of {queue}",
            "opts": self.model._meta,  # noqa: SLF001 - Django's own name for it
            "queues": queues,
            "queue": queue,
            "states": self.states,
            "state": state,
            "jobs": self._newest(request, queue, state if state in self.states else None),
            "may_cancel": self.has_change_permission(request),
        }
        return TemplateResponse(request, self.change_list_template, context)

    def _newest(self, request: HttpRequest, queue: str, state: str | None) -> list[JobInfo]:
        try:
            return jobs.sync.newest(queue, state=state, limit=LIMIT)
        except (JobsError, ClientError, OSError) as error:
            text = f"{error}. Is a coordinator running? Start one with manage.py waybill_worker --coordinator"
            self.message_user(request, text, messages.ERROR)
            return []

    def _cancel(self, request: HttpRequest, queue: str) -> HttpResponse:
        if not self.has_change_permission(request):
            raise PermissionDenied
        job_id = request.POST.get("cancel", "")
        try:
            jobs.sync.cancel(job_id, queue)
        except (JobsError, ClientError, OSError) as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            self.message_user(request, f"requested the cancellation of job {job_id}")
        return HttpResponseRedirect(request.get_full_path())
