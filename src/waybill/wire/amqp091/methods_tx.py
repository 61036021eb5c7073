"""Methods of class tx (0-9-1, 1.9): local transactions."""

from dataclasses import dataclass
from typing import ClassVar

from waybill.wire.amqp091.method import Method


@dataclass(frozen=True)
class TxSelect(Method):
    """Make the channel transactional."""

    CLASS_ID: ClassVar[int] = 90
    METHOD_ID: ClassVar[int] = 10
    NAME: ClassVar[str] = "tx.select"


@dataclass(frozen=True)
class TxSelectOk(Method):
    """The channel is transactional."""

    CLASS_ID: ClassVar[int] = 90
    METHOD_ID: ClassVar[int] = 11
    NAME: ClassVar[str] = "tx.select-ok"


@dataclass(frozen=True)
class TxCommit(Method):
    """Carry out all publishes and settlements since the last commit or rollback."""

    CLASS_ID: ClassVar[int] = 90
    METHOD_ID: ClassVar[int] = 20
    NAME: ClassVar[str] = "tx.commit"


@dataclass(frozen=True)
class TxCommitOk(Method):
    """They are carried out."""

    CLASS_ID: ClassVar[int] = 90
    METHOD_ID: ClassVar[int] = 21
    NAME: ClassVar[str] = "tx.commit-ok"


@dataclass(frozen=True)
class TxRollback(Method):
    """Abandon all publishes and settlements since the last commit or rollback."""

    CLASS_ID: ClassVar[int] = 90
    METHOD_ID: ClassVar[int] = 30
    NAME: ClassVar[str] = "tx.rollback"


@dataclass(frozen=True)
class TxRollbackOk(Method):
    """They are abandoned."""

    CLASS_ID: ClassVar[int] = 90
    METHOD_ID: ClassVar[int] = 31
    NAME: ClassVar[str] = "tx.rollback-ok"
