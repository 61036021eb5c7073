"""The method of class confirm: RabbitMQ's publisher confirms."""

from dataclasses import dataclass
from typing import ClassVar

from waybill.wire.amqp091.arguments import Arguments
from waybill.wire.amqp091.method import Method


@dataclass(frozen=True)
class ConfirmSelect(Method):
    """Confirm all publishes on this channel from now on."""

    CLASS_ID: ClassVar[int] = 85
    METHOD_ID: ClassVar[int] = 10
    NAME: ClassVar[str] = "confirm.select"
    ARGUMENTS: ClassVar[Arguments] = Arguments("nowait:bit")

    nowait: bool = False


@dataclass(frozen=True)
class ConfirmSelectOk(Method):
    """Publishes will be confirmed."""

    CLASS_ID: ClassVar[int] = 85
    METHOD_ID: ClassVar[int] = 11
    NAME: ClassVar[str] = "confirm.select-ok"
