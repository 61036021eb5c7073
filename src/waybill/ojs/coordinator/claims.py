"""Jobs that coordinators push themselves: each runs once, no matter which coordinator acts or is killed.

When a tick of a cron job or a step of a workflow is due, several coordinators may notice it, and any of them may be
killed at any time. Still, each job of this kind runs once:

    1. The id of the job is derived from its purpose: `derived_id(millisecond, "cron", name, tick)`.
    2. The feature writes an event "this is due" with the whole job. The first one in the order of the stream counts:
       the feature's fold calls `claim`, which stores the job as a row `claim/{job id}`. A row is marked PENDING until
       its push is confirmed.
    3. The leader pushes pending claims (`claim_pusher`), and writes claim.pushed. After a kill, the next leader finds
       pending claims and pushes them: then the job may be in its queue twice, which AMQP cannot detect.
    4. So each push has a unique name, the *copy*, in the header `x-ojs-copy`. The event of step 2 has the copy of the
       first push; for a further push, a new one is written in a claim.copied event first. A worker that receives a job
       with this header asks a coordinator before it starts. The coordinator writes claim.admitted with the copy, and
       again the first one in the order of the stream counts: this copy is the job, in all of its attempts, and all
       others are acknowledged without running.
    5. The end of the job, by its events, ends the claim. Later copies find no claim and are refused. A unique job whose
       place is taken is not pushed: claim.dropped ends its claim.

So the job runs like any job that was pushed once: only attempts whose worker was killed are repeated.

A fold can follow the events of its jobs with `claimed`. The fold of claims is last, so that a claim exists until all
features have seen the end of its job.

Only events of trusted users count, and copies named by a coordinator: users who can push jobs can neither claim a job
nor prevent others from running.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from waybill.ojs.coordinator.feature_fold import FeatureFold, Rows
from waybill.ojs.coordinator.job_fold import ENDS
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.identifiers import may_be_derived

PENDING: Final = "claim.pending"
"""The mark of claims whose jobs must be pushed."""
MAX_COPIES: Final = 100

DROPPED: Final = "claim.dropped"
_TYPES: Final = frozenset({"claim.pushed", "claim.copied", "claim.admitted", DROPPED})


class Claim(msgspec.Struct, omit_defaults=True):
    """A job that must be pushed, or was.

    `owner` is the key of the feature's row. `by` is the coordinator that claimed it and may push the first of `copies`.
    `copy` is the admitted copy. A claim that `waits` is not pushed before the feature calls `let_go`.
    """

    owner: str
    job: dict[str, object]
    by: str
    copies: list[str]
    copy: str = ""
    waits: bool = False
    is_pushed: bool = False
    note: dict[str, object] = msgspec.field(default_factory=dict)
    """Data that the feature needs when it pushes the job."""


def key_of(job_id: str) -> str:
    """Return the key of a claim."""
    return f"claim/{job_id}"


def claim(rows: Rows, job_id: str, new: Claim) -> bool:
    """Claim a job, in a feature's fold; False if it is already claimed. Older claims are the feature's business."""
    key = key_of(job_id)
    if rows.get(key, Claim) is not None:
        return False
    _keep(rows, key, new)
    return True


def claimed(rows: Rows, event: ReceivedEvent) -> Claim | None:
    """Return the claim of the job that an event is about, if any."""
    return rows.get(key_of(event.subject), Claim) if may_be_derived(event.subject) else None


def let_go(rows: Rows, job_id: str) -> None:
    """Allow a waiting claim to be pushed, in a feature's fold."""
    found = rows.get(key_of(job_id), Claim)
    if found is not None and found.waits:
        found.waits = False
        _keep(rows, key_of(job_id), found)


class ClaimFold(FeatureFold):
    """Folds claim events."""

    types = frozenset((*_TYPES, *ENDS))

    def __init__(self, is_trusted: Callable[[str | None], bool]) -> None:
        """`is_trusted` returns whether a user may be a coordinator's."""
        self._is_trusted = is_trusted

    def keys(self, event: ReceivedEvent) -> Sequence[str]:
        """Return the key of the claim that an event is about."""
        if event.type in _TYPES or (event.type in ENDS and may_be_derived(event.subject)):
            return (key_of(event.subject),)
        return ()

    def fold(self, rows: Rows, event: ReceivedEvent) -> None:
        """Record a push, an admission or the end."""
        key = key_of(event.subject)
        found = rows.get(key, Claim)
        if found is None:
            return
        if event.type in ENDS:
            rows.delete(key)
            return
        if event.type == DROPPED and self._is_trusted(event.user) and not found.is_pushed:
            rows.delete(key)
            return
        copy = event.data.get("copy")
        if not self._is_trusted(event.user) or not isinstance(copy, str):
            return
        if event.type == "claim.pushed":
            found.is_pushed = True
        elif event.type == "claim.copied" and copy not in found.copies:
            # Of an older copy it is unknown whether it was pushed. That it may not run any more does no harm: the last
            # one is pushed until that is confirmed.
            found.copies = [*found.copies, copy][-MAX_COPIES:]
        elif event.type == "claim.admitted" and not found.copy and copy in found.copies:
            found.copy = copy
        _keep(rows, key, found)


def _keep(rows: Rows, key: str, row: Claim) -> None:
    rows.put(key, row, None if row.is_pushed or row.waits else PENDING)
