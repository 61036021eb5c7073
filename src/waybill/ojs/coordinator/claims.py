"""Jobs that coordinators push themselves: each runs once, whichever coordinator acts or is killed.

A schedule's tick or a workflow's step is due: several coordinators may find so, and any of them may be killed at any
moment. Each job of this kind runs once all the same:

    1. The id of the job is derived from what it is for: `derived_id(millisecond, "cron", name, tick)`.
    2. The feature writes an event of its own that says "this is due", with the whole job in it. The first one in the
       order of the stream counts: the feature's fold calls `claim`, which keeps the job as a row `claim/{job id}`. A
       row is marked PENDING until its push is confirmed.
    3. The leader pushes what is pending (`claim_pusher`), and writes claim.pushed. After a kill, the next one finds
       claims that are pending still and pushes those: then the job may be in its queue twice, and the broker cannot say
       whether it is, in AMQP 0-9-1 least of all.
    4. So each push has a name, the *copy*, in the header `x-ojs-copy`. No two pushes have the same: whoever has written
       the event of step 2 has named the copy of the first push there, and whoever pushes again names another one in a
       claim.copied event before. A worker that gets a job with this header asks a coordinator before it starts. That
       writes claim.admitted with the copy, and again the first one in the order of the stream counts: this copy is the
       job, through all of its attempts, and every other one is acknowledged unseen.
    5. The end of the job, by its events, ends the claim. A copy that comes later finds none, and is refused.

So the job runs as often as any other job would that was pushed once: an attempt whose worker is killed is made again.

A fold that wants to know how its job does looks at the same job events, by `claimed`. The fold of claims comes last:
the claim is there until all features have seen the end.

Only events of trusted users count here, and copies that a coordinator has named: whoever may push jobs can neither
claim one nor keep another's from running.
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
"""The mark of claims whose job is to be pushed."""
MAX_COPIES: Final = 100

_TYPES: Final = frozenset({"claim.pushed", "claim.copied", "claim.admitted"})


class Claim(msgspec.Struct, omit_defaults=True):
    """A job that must be pushed, or was.

    `owner` is the key of the feature's row that it is for. `by` is the coordinator that has claimed it, and may push it
    under the first of the names in `copies`. `copy` is the one that was admitted. A claim that `waits` is not pushed
    before the feature says so (`let_go`).
    """

    owner: str
    job: dict[str, object]
    by: str
    copies: list[str]
    copy: str = ""
    waits: bool = False
    is_pushed: bool = False
    note: dict[str, object] = msgspec.field(default_factory=dict)
    """What the feature wants to know when the job is pushed."""


def key_of(job_id: str) -> str:
    """Return the key of a claim."""
    return f"claim/{job_id}"


def claim(rows: Rows, job_id: str, new: Claim) -> bool:
    """Claim a job, in a feature's fold; False if it is claimed already. Whether it was before, the feature knows."""
    key = key_of(job_id)
    if rows.get(key, Claim) is not None:
        return False
    _keep(rows, key, new)
    return True


def claimed(rows: Rows, event: ReceivedEvent) -> Claim | None:
    """Return the claim of the job that an event is about, None if there is none."""
    return rows.get(key_of(event.subject), Claim) if may_be_derived(event.subject) else None


def let_go(rows: Rows, job_id: str) -> None:
    """Have a claim pushed that waits, in a feature's fold."""
    found = rows.get(key_of(job_id), Claim)
    if found is not None and found.waits:
        found.waits = False
        _keep(rows, key_of(job_id), found)


class ClaimFold(FeatureFold):
    """Folds what happens to claims."""

    types = frozenset((*_TYPES, *ENDS))

    def __init__(self, is_trusted: Callable[[str | None], bool]) -> None:
        """`is_trusted` says of a user whether it may be a coordinator's."""
        self._is_trusted = is_trusted

    def keys(self, event: ReceivedEvent) -> Sequence[str]:
        """Return the claim that an event is about."""
        if event.type in _TYPES or (event.type in ENDS and may_be_derived(event.subject)):
            return (key_of(event.subject),)
        return ()

    def fold(self, rows: Rows, event: ReceivedEvent) -> None:
        """Take note of a push, an admission or the end."""
        key = key_of(event.subject)
        found = rows.get(key, Claim)
        if found is None:
            return
        if event.type in ENDS:
            rows.delete(key)
            return
        copy = event.data.get("copy")
        if not self._is_trusted(event.user) or not isinstance(copy, str):
            return
        if event.type == "claim.pushed":
            found.is_pushed = True
        elif event.type == "claim.copied" and copy not in found.copies and len(found.copies) < MAX_COPIES:
            found.copies.append(copy)
        elif event.type == "claim.admitted" and not found.copy and copy in found.copies:
            found.copy = copy
        _keep(rows, key, found)


def _keep(rows: Rows, key: str, row: Claim) -> None:
    rows.put(key, row, None if row.is_pushed or row.waits else PENDING)
