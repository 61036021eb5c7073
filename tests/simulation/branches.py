"""The reference model of the branches of distributed transactions: what was said of them, and what must follow.

    OPEN --prepare--> PREPARING --told so, or found in doubt--> PREPARED --commit--> COMMITTING --> COMMITTED
                                                                         --roll back--> ROLLING_BACK --> ROLLED_BACK

A branch that was prepared is in doubt until somebody has decided on it, over any number of crashes.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.simulation.message import (
    COMMITTED,
    COMMITTING,
    NEVER,
    OPEN,
    ROLLED_BACK,
    Copy,
    Transaction,
)
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.ledger import Ledger

PREPARING: Final = "preparing"
PREPARED: Final = "prepared"
ROLLING_BACK: Final = "rolling back"
IN_DOUBT: Final = "a prepared branch stays in doubt until it is decided"
DECIDED: Final = "a branch that is not prepared is not in doubt"
HELD: Final = "what a prepared branch holds is delivered to nobody"
WHOLE: Final = "a branch is carried out as a whole or not at all"


@dataclass(eq=False)
class Branch(Transaction):
    """`owner`: the actor whose it is. `prepared_at`: when it was known to be prepared, in the life `prepared_in`.

    `is_one_phase`: it is committed without having been prepared. `may_expire`: it has little time until it is prepared.
    `is_ended`: its work was ended, so it no longer ends with its session.
    """

    owner: str = ""
    xid: bytes = b""
    prepared_at: float = NEVER
    prepared_in: int = -1
    is_one_phase: bool = False
    may_expire: bool = False
    is_ended: bool = False


@dataclass
class Branches:
    """All branches of a run, by xid.

    `has_left_some`: a session was lost between the end of a branch and its preparation. Such a branch holds what it has
    settled until its time is over.
    """

    ledger: "Ledger"
    by_xid: dict[bytes, Branch] = field(default_factory=dict)
    has_left_some: bool = False

    def begin(self, owner: str) -> Branch:
        branch = Branch(owner=owner, xid=b"%s.%d" % (owner.encode(), len(self.by_xid)))
        self.by_xid[branch.xid] = branch
        self.ledger.transactions.append(branch)
        return branch

    def preparing(self, branch: Branch) -> None:
        branch.state = PREPARING
        branch.life = branch.prepared_in = self.ledger.life
        for message in branch.messages:
            # What is not durable may go with this life, though the branch stays.
            message.published_in = self.ledger.life

    def prepared(self, branch: Branch, now: float) -> None:
        branch.state = PREPARED
        branch.prepared_at = min(branch.prepared_at, now)

    def committing(self, branch: Branch, now: float, *, one_phase: bool) -> None:
        branch.is_one_phase = one_phase
        branch.state = COMMITTING
        branch.life = self.ledger.life
        for message in branch.messages:
            message.routed_after = now
            if one_phase:
                message.published_in = self.ledger.life
        for copy in branch.settled:
            copy.commits += 1

    def _was_not_committed(self, branch: Branch) -> None:
        if branch.state == COMMITTING:
            for copy in branch.settled:
                copy.commits -= 1

    def rolling_back(self, branch: Branch) -> None:
        branch.state = ROLLING_BACK

    def rolled_back(self, branch: Branch) -> None:
        """It is known to have come to nothing."""
        self._was_not_committed(branch)
        branch.state = ROLLED_BACK
        self.ledger.departed()

    def recovered(self, owner: str, in_doubt: list[bytes], now: float) -> list[Branch]:
        """The broker lists what is in doubt; all that its owner has asked for before was either done, or never will be.

        Returns the branches that the owner has to decide on.
        """
        for xid in in_doubt:
            branch = self.by_xid.get(xid)
            if branch is None:
                raise Violation(DECIDED, f"{xid!r} was never begun")
            if self.ledger.is_damaged:
                continue  # What has decided on it may be lost.
            if branch.state in {COMMITTED, ROLLED_BACK, OPEN} and (branch.owner == owner or branch.state == OPEN):
                raise Violation(DECIDED, f"{xid!r} is {branch.state}")
        mine = [branch for branch in self.by_xid.values() if branch.owner == owner]
        for branch in mine:
            if branch.xid in in_doubt:
                if branch.state not in {COMMITTED, ROLLED_BACK}:
                    self._still_in_doubt(branch, now)
            elif branch.state not in {COMMITTED, ROLLED_BACK}:
                self._not_in_doubt(branch, now)
        return [branch for branch in mine if branch.state == PREPARED]

    def _still_in_doubt(self, branch: Branch, now: float) -> None:
        if branch.is_one_phase:
            raise Violation(DECIDED, f"{branch.xid!r} was never prepared")
        if branch.seen_in > branch.life:
            raise Violation(WHOLE, f"{branch.xid!r} is in doubt, and a message of it was seen")
        self._was_not_committed(branch)
        self.prepared(branch, now)

    def _not_in_doubt(self, branch: Branch, now: float) -> None:
        if branch.state == PREPARED and not self.ledger.is_damaged:
            raise Violation(IN_DOUBT, f"{branch.xid!r} is unknown")
        if branch.state == COMMITTING and not branch.is_one_phase:
            # It was prepared, and nobody has asked for anything but its commit.
            if not self.ledger.is_damaged:
                self.ledger.committed(branch, now)
        elif branch.state != COMMITTING:
            self.has_left_some = self.has_left_some or branch.is_ended
            self.rolled_back(branch)

    def check_held(self, copy: Copy, sent_after: float) -> None:
        """A copy was sent to a client at some time from `sent_after` on."""
        if self.ledger.is_damaged:
            return
        for branch in self.by_xid.values():
            holds = branch.state in {PREPARED, COMMITTING} and branch.prepared_at <= sent_after
            if (
                holds
                and copy in branch.settled
                and copy.durable_at == NEVER
                and (copy.is_kept or branch.prepared_in == self.ledger.life)
            ):
                raise Violation(HELD, f"{copy}, by {branch.xid!r}")
