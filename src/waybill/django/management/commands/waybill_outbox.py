"""`manage.py waybill_outbox`: push the jobs that committed transactions have stored in the outbox."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from waybill.django.outbox import DjangoOutboxRelay


class Command(BaseCommand):
    """Runs a relay."""

    help = "Push the jobs of the outbox until SIGTERM or Ctrl-C. Any number may run; one pushes at a time."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--database", default=None, help="Alias of the database.")
        parser.add_argument("--once", action="store_true", help="Push the stored jobs, then exit.")

    def handle(self, *_args: Any, **options: Any) -> None:  # noqa: ANN401 - the signature of the base class
        """Run it."""
        relay = DjangoOutboxRelay(using=options["database"])
        if options["once"]:
            count = relay.publish_all()
            self.stdout.write(f"pushed {count}")
            return
        stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        self.stdout.write("ready")
        self.stdout.flush()
        relay.run(stopped)
        self.stdout.write(f"pushed {relay.published_count}")
