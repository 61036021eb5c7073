"""`manage.py waybill_worker`: `waybill worker` with the project's settings, handlers and database."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from waybill.cli.worker import command as worker

TARGET = "waybill.django:jobs"


class Command(BaseCommand):
    """Passes its arguments to `waybill worker`."""

    help = "Run the handlers of this project. Accepts the options of `waybill worker`: see --help."

    def run_from_argv(self, argv: list[str]) -> None:
        """Run with command-line arguments, which are those of `waybill worker`."""
        worker.main([TARGET, *argv[2:]], prog_name=f"{argv[0]} {argv[1]}")

    def handle(self, *args: Any, **_options: Any) -> None:  # noqa: ANN401 - the signature of the base class
        """Run with the arguments of `call_command`."""
        worker.main([TARGET, *map(str, args)], prog_name="waybill_worker", standalone_mode=False)
