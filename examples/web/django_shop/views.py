"""The web application."""

# pyright: basic, reportGeneralTypeIssues=false, reportArgumentType=false

from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from examples.web.django_shop.jobs import welcome
from waybill.django import on_commit, outbox


@csrf_exempt
def register(_request: HttpRequest, name: str) -> HttpResponse:
    """The job is pushed when the user is there for all to see."""
    with transaction.atomic():
        user = User.objects.create_user(name)
        on_commit(welcome.job(user.pk))
    return HttpResponse(status=202)


@csrf_exempt
def register_safely(_request: HttpRequest, name: str) -> HttpResponse:
    """The job is in the same transaction as the user: it cannot be missing."""
    with transaction.atomic():
        user = User.objects.create_user(name)
        job = outbox.add(welcome.job(user.pk))
    return HttpResponse(job.id, status=202)
