"""Methods of class tx (0-9-1, 1.9): local transactions."""

from waybill.wire.amqp091.method import Method, method


@method(90, 10, "tx.select")
class TxSelect(Method):
    """Make the channel transactional."""


@method(90, 11, "tx.select-ok")
class TxSelectOk(Method):
    """The channel is transactional."""


@method(90, 20, "tx.commit")
class TxCommit(Method):
    """Apply all publishes and settlements since the last commit or rollback."""


@method(90, 21, "tx.commit-ok")
class TxCommitOk(Method):
    """The transaction is committed."""


@method(90, 30, "tx.rollback")
class TxRollback(Method):
    """Discard all publishes and settlements since the last commit or rollback."""


@method(90, 31, "tx.rollback-ok")
class TxRollbackOk(Method):
    """The transaction is rolled back."""
