"""Methods of class tx (0-9-1, 1.9): local transactions."""

from dataclasses import dataclass

from waybill.wire.amqp091.method import Method, method


@method(90, 10, "tx.select")
@dataclass(frozen=True)
class TxSelect(Method):
    """Make the channel transactional."""


@method(90, 11, "tx.select-ok")
@dataclass(frozen=True)
class TxSelectOk(Method):
    """The channel is transactional."""


@method(90, 20, "tx.commit")
@dataclass(frozen=True)
class TxCommit(Method):
    """Carry out all publishes and settlements since the last commit or rollback."""


@method(90, 21, "tx.commit-ok")
@dataclass(frozen=True)
class TxCommitOk(Method):
    """They are carried out."""


@method(90, 30, "tx.rollback")
@dataclass(frozen=True)
class TxRollback(Method):
    """Abandon all publishes and settlements since the last commit or rollback."""


@method(90, 31, "tx.rollback-ok")
@dataclass(frozen=True)
class TxRollbackOk(Method):
    """They are abandoned."""
