"""Requests to coordinators about cron jobs, and their replies."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from waybill.ojs.cron.definition import CronInfo

CRON_REQUEST: Final = "ojs.control.cron"

Action = Literal["register", "list", "get", "pause", "resume", "remove", "run"]


class CronRequest(msgspec.Struct, omit_defaults=True):
    """A request; its fields depend on the action. `request_id` is unique, so that a manual run happens once."""

    action: Action
    name: str = ""
    job: dict[str, object] | None = None
    count: int = 0
    """The number of next runs to return."""
    request_id: str = ""
    by: str | None = None


class CronReply(msgspec.Struct, omit_defaults=True):
    """A reply. `error` is a code of the Open Job Spec."""

    cron_jobs: list[CronInfo] = msgspec.field(default_factory=list)
    outcome: str = ""
    """Of `register`: created, updated or unchanged; of `run`: the id of the job."""
    error: str | None = None
    message: str = ""
