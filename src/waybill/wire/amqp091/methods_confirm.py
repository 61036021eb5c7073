"""The method of class confirm: RabbitMQ's publisher confirms."""

from waybill.wire.amqp091.method import Method, method


@method(85, 10, "confirm.select", "nowait:bit")
class ConfirmSelect(Method):
    """Confirm all publishes on this channel from now on."""

    nowait: bool = False


@method(85, 11, "confirm.select-ok")
class ConfirmSelectOk(Method):
    """Publishes will be confirmed."""
