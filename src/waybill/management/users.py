"""Users and their permissions: /api/users, /api/permissions, /api/topic-permissions, /api/user-limits, /api/whoami."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Any, Final

from waybill.management.api_context import DEFAULT_EXCHANGE, ApiContext
from waybill.management.call import CREATED, NO_CONTENT, Answer, Call, integer_of, require, tags_of, text_of
from waybill.management.errors import bad_request, not_found
from waybill.management.listing import Item, Listing
from waybill.management.router import Route
from waybill.model.permission import CONFIGURE, READ, WRITE
from waybill.node.accounts import Account
from waybill.node.administration import UNLIMITED
from waybill.node.node import Node
from waybill.node.passwords import RABBITMQ_SHA256, SCRYPT, Credential

MAX_CONNECTIONS: Final = "max-connections"
MAX_CHANNELS: Final = "max-channels"
LIMITS: Final = (MAX_CONNECTIONS, MAX_CHANNELS)


class UserRoutes:
    """The routes for users."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._hashing = asyncio.Lock()
        """Hashes are slow: one thread makes them."""

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/whoami", self._whoami),
            Route("GET", "/users", self._list),
            Route("GET", "/users/without-permissions", self._without_permissions),
            Route("POST", "/users/bulk-delete", self._delete_many),
            Route("GET", "/users/{user}", self._show),
            Route("PUT", "/users/{user}", self._put),
            Route("DELETE", "/users/{user}", self._delete),
            Route("GET", "/user-limits", self._all_limits),
            Route("GET", "/user-limits/{user}", self._all_limits),
            Route("PUT", "/user-limits/{user}/{limit}", self._set_limit),
            Route("DELETE", "/user-limits/{user}/{limit}", self._clear_limit),
        ]

    def _account(self, call: Call) -> Account:
        account = self._context.administration.accounts.by_name.get(call["user"])
        if account is None:
            raise not_found()
        return account

    async def _whoami(self, call: Call) -> Item:
        return {"name": call.principal.name, "tags": list(call.principal.tags)}

    async def _list(self, call: Call) -> Answer:
        call.principal.require_administrator()
        return await self._listed(call, list(self._context.administration.accounts.by_name.values()))

    async def _without_permissions(self, call: Call) -> Answer:
        call.principal.require_administrator()
        accounts = self._context.administration.accounts.by_name.values()
        return await self._listed(call, [one for one in accounts if not one.user.permissions])

    @staticmethod
    async def _listed(call: Call, accounts: list[Account]) -> Answer:
        listing = Listing[Account](
            user_item, {"name": lambda account: account.user.name}, tie=lambda account: account.user.name
        )
        return await listing.answer(call, accounts)

    async def _show(self, call: Call) -> Item:
        call.principal.require_administrator()
        return user_item(self._account(call))

    async def _put(self, call: Call) -> Answer:
        call.principal.require_administrator()
        body = call.take_body()
        if body.get("tags") is None:
            raise bad_request("tags_not_present")
        tags = tags_of(body["tags"])
        name = call["user"]
        accounts = self._context.administration.accounts
        is_new = name not in accounts.by_name
        credential = self._credential(body)
        present = accounts.by_name.get(name)
        if credential is not None and present is not None and credential.hash == present.credential.hash:
            # The SCRAM credentials are not in the hash: keep those of an unchanged hash.
            credential = present.credential

        if credential is None:
            async with self._hashing:
                credential = await asyncio.to_thread(accounts.credential, text_of(body, "password"))
        found = credential
        await self._context.perform(lambda node: node.administration.put_user_with_credential(name, found, tags))
        return Answer(CREATED if is_new else NO_CONTENT)

    @staticmethod
    def _credential(body: dict[str, Any]) -> Credential | None:
        """Return the password hash of a body. Raises Refused."""
        if body.get("password"):
            return None
        text = text_of(body, "password_hash")
        if not text:
            return None
        algorithm = text_of(body, "hashing_algorithm") or RABBITMQ_SHA256
        if algorithm not in {RABBITMQ_SHA256, SCRYPT}:
            raise bad_request(f"unknown hashing algorithm: {algorithm}")
        try:
            return Credential(algorithm, base64.b64decode(text, validate=True), None)
        except (binascii.Error, ValueError):
            raise bad_request("password_hash must be base64") from None

    async def _delete(self, call: Call) -> Answer:
        call.principal.require_administrator()
        self._account(call)
        await self._context.perform(lambda node: node.administration.delete_user(call["user"]))
        return Answer(NO_CONTENT)

    async def _delete_many(self, call: Call) -> Answer:
        call.principal.require_administrator()
        names = call.take_body().get("users")
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise bad_request("users must be a list of names")

        def delete(node: Node) -> None:
            for name in names:
                if name in node.administration.accounts.by_name:
                    node.administration.delete_user(name)

        await self._context.perform(delete)
        return Answer(NO_CONTENT)

    # --- limits ---

    async def _all_limits(self, call: Call) -> list[Item]:
        call.principal.require_administrator()
        accounts = self._context.administration.accounts.by_name.values()
        if "user" in call.parameters:
            accounts = [self._account(call)]  # type: ignore[assignment]
        return [{"user": one.user.name, "value": found} for one in accounts if (found := limits_of(one))]

    async def _set_limit(self, call: Call) -> Answer:
        call.principal.require_administrator()
        self._account(call)
        if call["limit"] not in LIMITS:
            raise bad_request(f"Unrecognised user limit: {call['limit']}")
        await self._change_limit(call, integer_of(call.take_body(), "value"))
        return Answer(NO_CONTENT)

    async def _clear_limit(self, call: Call) -> Answer:
        call.principal.require_administrator()
        self._account(call)
        await self._change_limit(call, UNLIMITED)
        return Answer(NO_CONTENT)

    async def _change_limit(self, call: Call, value: int) -> None:
        account = self._account(call)
        connections, channels = account.connection_max, account.user.channel_max
        if call["limit"] == MAX_CONNECTIONS:
            connections = value
        elif call["limit"] == MAX_CHANNELS:
            channels = value

        def change(node: Node) -> None:
            node.administration.set_user_limits(call["user"], max_connections=connections, max_channels=channels)

        await self._context.perform(change)


class PermissionRoutes:
    """The routes for permissions."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/permissions", self._list),
            Route("GET", "/vhosts/{vhost}/permissions", self._list),
            Route("GET", "/users/{user}/permissions", self._of_user),
            Route("GET", "/permissions/{vhost}/{user}", self._show),
            Route("PUT", "/permissions/{vhost}/{user}", self._put),
            Route("DELETE", "/permissions/{vhost}/{user}", self._delete),
            Route("GET", "/topic-permissions", self._topics),
            Route("GET", "/vhosts/{vhost}/topic-permissions", self._topics),
            Route("GET", "/users/{user}/topic-permissions", self._topics_of_user),
            Route("GET", "/topic-permissions/{vhost}/{user}", self._topics_shown),
            Route("PUT", "/topic-permissions/{vhost}/{user}", self._put_topic),
            Route("DELETE", "/topic-permissions/{vhost}/{user}", self._delete_topics),
            Route("DELETE", "/topic-permissions/{vhost}/{user}/{exchange}", self._delete_topics),
        ]

    def _accounts(self, call: Call, *, own: bool = False) -> list[Account]:
        """Return the accounts of a path. Raises Refused."""
        if not (own and call["user"] == call.principal.name):
            call.principal.require_administrator()
        by_name = self._context.administration.accounts.by_name
        if "vhost" in call.parameters:
            self._context.virtual_host(call)
        if "user" not in call.parameters:
            return list(by_name.values())
        if call["user"] not in by_name:
            raise not_found()
        return [by_name[call["user"]]]

    def _permissions(self, call: Call, *, own: bool = False) -> list[Item]:
        wanted = call.parameters.get("vhost")
        return [
            {"user": account.user.name, "vhost": name, **permission.patterns}
            for account in self._accounts(call, own=own)
            for name, permission in account.user.permissions.items()
            if wanted is None or name == wanted
        ]

    def _topic_permissions(self, call: Call, *, own: bool = False) -> list[Item]:
        wanted = call.parameters.get("vhost")
        return [
            {
                "user": account.user.name,
                "vhost": name,
                "exchange": exchange or DEFAULT_EXCHANGE,
                **permission.patterns,
            }
            for account in self._accounts(call, own=own)
            for (name, exchange), permission in account.user.topic_permissions.items()
            if wanted is None or name == wanted
        ]

    async def _list(self, call: Call) -> list[Item]:
        return self._permissions(call)

    async def _of_user(self, call: Call) -> list[Item]:
        return self._permissions(call, own=True)

    async def _show(self, call: Call) -> Item:
        found = self._permissions(call)
        if not found:
            raise not_found()
        return found[0]

    async def _put(self, call: Call) -> Answer:
        call.principal.require_administrator()
        self._check_ends(call)
        body = call.take_body()
        require(body, CONFIGURE, WRITE, READ)
        configure, write, read = (text_of(body, name) for name in (CONFIGURE, WRITE, READ))
        account = self._context.administration.accounts.by_name[call["user"]]
        is_new = call["vhost"] not in account.user.permissions
        await self._context.perform(
            lambda node: node.administration.set_permission(call["user"], call["vhost"], configure, write, read)
        )
        return Answer(CREATED if is_new else NO_CONTENT)

    def _check_ends(self, call: Call) -> None:
        """Raise Refused unless both user and virtual host exist."""
        accounts = self._context.administration.accounts.by_name
        if self._context.node.virtual_host(call["vhost"]) is None or call["user"] not in accounts:
            raise bad_request("vhost_or_user_not_found")

    async def _delete(self, call: Call) -> Answer:
        call.principal.require_administrator()
        if not self._permissions(call):
            raise not_found()
        await self._context.perform(lambda node: node.administration.clear_permission(call["user"], call["vhost"]))
        return Answer(NO_CONTENT)

    # --- topic permissions ---

    async def _topics(self, call: Call) -> list[Item]:
        return self._topic_permissions(call)

    async def _topics_of_user(self, call: Call) -> list[Item]:
        return self._topic_permissions(call, own=True)

    async def _topics_shown(self, call: Call) -> list[Item]:
        found = self._topic_permissions(call)
        if not found:
            raise not_found()
        return found

    async def _put_topic(self, call: Call) -> Answer:
        call.principal.require_administrator()
        self._check_ends(call)
        body = call.take_body()
        require(body, "exchange", WRITE, READ)
        exchange = text_of(body, "exchange")
        exchange = "" if exchange == DEFAULT_EXCHANGE else exchange
        write, read = text_of(body, WRITE), text_of(body, READ)
        user = self._context.administration.accounts.by_name[call["user"]].user
        is_new = not any(vhost == call["vhost"] for vhost, _ in user.topic_permissions)
        await self._context.perform(
            lambda node: node.administration.set_topic_permission(call["user"], call["vhost"], exchange, write, read)
        )
        return Answer(CREATED if is_new else NO_CONTENT)

    async def _delete_topics(self, call: Call) -> Answer:
        call.principal.require_administrator()
        found = self._topic_permissions(call)
        if "exchange" in call.parameters:
            found = [one for one in found if one["exchange"] == call["exchange"]]
        if not found:
            raise not_found()

        def delete(node: Node) -> None:
            for one in found:
                exchange = "" if one["exchange"] == DEFAULT_EXCHANGE else one["exchange"]
                node.administration.clear_topic_permission(call["user"], call["vhost"], exchange)

        await self._context.perform(delete)
        return Answer(NO_CONTENT)


def user_item(account: Account) -> Item:
    """Return a user as JSON."""
    return {
        "hashing_algorithm": account.credential.algorithm,
        "limits": limits_of(account),
        "name": account.user.name,
        "password_hash": base64.b64encode(account.credential.hash).decode(),
        "tags": list(account.user.tags),
    }


def limits_of(account: Account) -> dict[str, int]:
    """Return the limits of a user."""
    found = {MAX_CONNECTIONS: account.connection_max, MAX_CHANNELS: account.user.channel_max}
    return {name: limit for name, limit in found.items() if limit >= 0}
