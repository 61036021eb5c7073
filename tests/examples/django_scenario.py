"""What test_django_shop.py runs in a process of its own: prints what it has seen as JSON."""

import io
import json
import threading
from typing import Any

import django

django.setup()

from django.contrib.auth.models import User  # noqa: E402 - after the setup
from django.core.management import call_command  # noqa: E402
from django.db import transaction  # noqa: E402
from django.test import Client  # noqa: E402

from examples.web.django_shop.jobs import welcome  # noqa: E402
from waybill.django import jobs, on_commit, outbox  # noqa: E402
from waybill.django.models import OutboxJob  # noqa: E402
from waybill.ojs import Coordinator  # noqa: E402
from waybill.testing import fake, inline  # noqa: E402
from waybill.transport.loop import run  # noqa: E402


class Undo(Exception):
    pass


def undo() -> None:
    raise Undo


def scenario() -> dict[str, Any]:
    found: dict[str, Any] = {}
    call_command("migrate", verbosity=0)
    call_command("makemigrations", "waybill", "--check", "--dry-run", verbosity=0)
    found["no changes to migrate"] = True
    with fake(jobs) as pushed:
        try:
            with transaction.atomic():
                on_commit(welcome.job(1))
                undo()
        except Undo:
            found["pushed after a rollback"] = len(pushed.all_enqueued())
        with transaction.atomic():
            on_commit(welcome.job(1))
            found["pushed in the transaction"] = len(pushed.all_enqueued())
        found["pushed after the commit"] = len(pushed.all_enqueued())
    try:
        with transaction.atomic():
            outbox.add(welcome.job(1))
            undo()
    except Undo:
        found["outbox after a rollback"] = OutboxJob.objects.count()
    with inline(jobs) as done:
        eve = User.objects.create_user("eve")
        with transaction.atomic():
            on_commit(welcome.job(eve.pk))
        found["inline"] = done.assert_completed("user.welcome")[0].result

    client = Client()
    assert client.post("/users/ada").status_code == 202
    assert client.post("/safe-users/bob").status_code == 202
    found["ada"] = User.objects.get(username="ada").pk
    found["bob"] = User.objects.get(username="bob").pk
    found["outbox before the relay"] = OutboxJob.objects.count()
    output = io.StringIO()
    call_command("waybill_outbox", "--once", stdout=output)
    found["relay"] = output.getvalue().strip()
    found["outbox after the relay"] = OutboxJob.objects.count()
    found |= admin_pages()
    return found


def admin_pages() -> dict[str, Any]:
    User.objects.create_superuser("root", password="x")
    client = Client()
    others = client.get("/admin/waybill/job/").status_code
    client.login(username="root", password="x")
    with coordinating():
        page = client.get("/admin/waybill/job/?queue=django-mail&state=available")
        job_id = jobs.sync.newest("django-mail")[0].id
        cancelled = client.post("/admin/waybill/job/?queue=django-mail", {"cancel": job_id})
    assert client.get("/admin/waybill/outboxjob/").status_code == 200
    return {
        "admin": [page.status_code, "user.welcome" in page.content.decode(), cancelled.status_code],
        "admin for others": others,
    }


class coordinating:  # noqa: N801 - used like a function
    def __enter__(self) -> None:
        self._ready, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: run(self._coordinate()))
        self._thread.start()
        assert self._ready.wait(30)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _coordinate(self) -> None:
        import asyncio

        async with Coordinator(jobs.twin(), queues=["django-mail"]):
            self._ready.set()
            await asyncio.to_thread(self._stop.wait)


if __name__ == "__main__":
    print(json.dumps(scenario()))
