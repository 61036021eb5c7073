"""The publish routes that a connection remembers, by the octets of their method frames."""

from typing import Final

from waybill.engine.amqp091.server.channel import Channel
from waybill.engine.amqp091.server.faults import BASIC, PUBLISH, connection_fault, read_method
from waybill.engine.amqp091.server.publish_route import PublishRoute
from waybill.wire.amqp091.methods_basic import BasicPublish
from waybill.wire.amqp091.reply_codes import NOT_IMPLEMENTED

ROUTES_MAX: Final = 16_384


class ChannelRoute(PublishRoute):
    """A route with the channel that publishes by it."""

    def __init__(self, channel: Channel, octets: bytes, exchange: str, routing_key: str, *, mandatory: bool) -> None:
        super().__init__(channel, octets, exchange, routing_key, mandatory=mandatory)
        self.channel = channel


class ChannelRoutes:
    """All routes of one connection; they are forgotten together when there are too many."""

    def __init__(self) -> None:
        self._by_octets: dict[bytes, ChannelRoute] = {}

    def of(self, channel: Channel, octets: bytes) -> ChannelRoute:
        """The route of a basic.publish method frame. Raises a connection fault for one that is not served."""
        route = self._by_octets.get(octets)
        if route is None or route.channel is not channel:
            method = read_method(octets[7:-1])
            assert isinstance(method, BasicPublish)  # noqa: S101 - the caller compared class and method id
            if method.immediate:
                raise connection_fault(NOT_IMPLEMENTED, "immediate=true", BASIC, PUBLISH)
            route = ChannelRoute(channel, octets, method.exchange, method.routing_key, mandatory=method.mandatory)
            if len(self._by_octets) >= ROUTES_MAX:
                self._by_octets.clear()
            self._by_octets[octets] = route
        return route

    def clear(self) -> None:
        self._by_octets.clear()
