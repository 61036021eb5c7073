"""The order in which the nodes of a cluster are tried, and the error of a round in which all have failed."""

from random import SystemRandom
from typing import Final

from waybill.client.errors import ClientError, ConnectFailed
from waybill.client.uri import BrokerAddress

_RANDOM: Final = SystemRandom()


def round_of(address: BrokerAddress, lost: BrokerAddress | None = None) -> list[BrokerAddress]:
    """Each node once, in random order, so that clients spread; the node that was just lost comes last."""
    nodes = list(address.nodes)
    _RANDOM.shuffle(nodes)
    return sorted(nodes, key=lambda node: node == lost)


def round_error(address: BrokerAddress, errors: list[ClientError]) -> ClientError:
    """The error of a round in which no node accepted the connection. An answer takes precedence over silence."""
    if len(errors) == 1:
        return errors[0]
    for error in errors:
        if type(error) is not ConnectFailed:
            return error
    causes = "; ".join(str(error) for error in errors)
    return ConnectFailed(f"none of the {len(errors)} nodes of {address} can be reached: {causes}")
