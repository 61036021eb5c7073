"""The broker: `Broker` is what users import to run one in their own process."""

from waybill.broker.broker import Broker, BrokerFailed
from waybill.node.administration import FirstUser
from waybill.transport.clock import Clock

__all__ = ["Broker", "BrokerFailed", "Clock", "FirstUser"]
