"""Bugs of AMQP 0-10 to plant: of sessions that are resumed, of credit in octets, of branches in doubt."""

from collections.abc import Mapping
from typing import Final

from tests.simulation.amqp010_session import CREDIT, REMEMBERED
from tests.simulation.branches import IN_DOUBT
from tests.simulation.logic_bug import CALM, CRASHES, NETWORK, PRESENT, STORED_ONCE, LogicBug
from waybill.engine.amqp010.server import tasks
from waybill.engine.amqp010.server.command_session import CommandSession
from waybill.engine.amqp010.server.replay import Replay, Sent
from waybill.engine.amqp010.server.subscription import Subscription
from waybill.model.branch import Branch
from waybill.model.branches import Branches
from waybill.model.entry import Entry
from waybill.model.transaction import RELEASE
from waybill.model.virtual_host import VirtualHost


def never(session: CommandSession) -> bool:
    """A session takes what comes again for new."""
    del session
    return False


def keep_nothing(replay: Replay, sent: Sent) -> None:
    """What was sent is not kept for a session that is resumed."""
    del replay, sent


def covers_everything(subscription: Subscription, entry: Entry) -> bool:
    """Credit in octets is not asked for."""
    del subscription, entry
    return True


def commit_publishes(branch: Branch, *, one_phase: bool) -> int:
    """A branch commits what it published, and forgets what it accepted."""
    branch.transaction.outcomes = []
    return _commit(branch, one_phase=one_phase)


def recover_nothing(branches: Branches, virtual_hosts: Mapping[str, VirtualHost]) -> None:
    """Prepared branches are forgotten in a crash."""
    del branches, virtual_hosts


def write_in_part(branches: Branches, branch: Branch) -> None:
    """The last message of a branch is not stored with it."""
    publishes = branch.transaction.publishes
    branch.transaction.publishes = publishes[:-1]
    _write(branches, branch)
    branch.transaction.publishes = publishes


def settle_unmarked(entry: Entry, outcome: str) -> None:
    """`set-redelivered` is not heeded."""
    _settle_one(entry, tasks.UNMARKED if outcome == RELEASE else outcome)


_commit = Branch.commit
_write = Branches.write
_settle_one = tasks.settle_one

AMQP010_BUGS: Final[dict[str, LogicBug]] = {
    "replay_executed_twice": LogicBug(CommandSession, "is_repeated", property(never), STORED_ONCE, NETWORK, "plain"),
    "nothing_replayed": LogicBug(Replay, "add", keep_nothing, REMEMBERED, NETWORK, "plain"),
    "octets_not_charged": LogicBug(Subscription, "has_credit_for", covers_everything, CREDIT, CALM, "plain"),
    "released_unmarked": LogicBug(tasks, "settle_one", settle_unmarked, "redelivered is honest", CALM, "plain"),
    "branch_keeps_accepted": LogicBug(
        Branch, "commit", commit_publishes, "nothing durably settled comes back", CRASHES, "plain"
    ),
    "branch_forgotten": LogicBug(Branches, "recover", recover_nothing, IN_DOUBT, CRASHES, "plain"),
    "branch_stored_in_part": LogicBug(Branches, "write", write_in_part, PRESENT, CRASHES, "plain"),
}
