"""Permission checks of a user, in terms of the model. Shared by all protocols."""

from waybill.engine.host import User
from waybill.model.errors import AccessRefused
from waybill.model.exchange import TopicExchange
from waybill.model.virtual_host import VirtualHost


def check_permission(user: User, virtual_host: VirtualHost, action: str, kind: str, name: str) -> None:
    """Raises `AccessRefused` unless `user` may do `action` with the `kind` ("queue" or "exchange") called `name`."""
    permission = user.permissions.get(virtual_host.name)
    if permission is None:
        raise AccessRefused(f"access to vhost '{virtual_host.name}' refused for user '{user.name}'")
    permission.check(action, kind, name, virtual_host.name, user.name)


def check_topic(user: User, virtual_host: VirtualHost, action: str, exchange_name: str, routing_key: str) -> None:
    """Raises `AccessRefused` unless `user` may do `action` with `routing_key`, if that exchange is of type topic."""
    permission = user.topic_permissions.get((virtual_host.name, exchange_name))
    if permission is None:
        return
    exchange = virtual_host.exchanges.get(exchange_name)
    if isinstance(exchange, TopicExchange):
        permission.check(action, routing_key, exchange_name, virtual_host.name, user.name)
