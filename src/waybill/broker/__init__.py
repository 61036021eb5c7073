"""The broker: `Broker` is what users import to run one in their own process."""

from waybill.broker.broker import Broker, BrokerFailed

__all__ = ["Broker", "BrokerFailed"]
