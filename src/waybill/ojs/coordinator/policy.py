"""Which requests a coordinator accepts from whom.

A control queue is bound to the exchange that jobs are pushed to, so everyone who may push may send requests. The
coordinator executes them with its own permissions. So it checks the user that the broker has verified: the `user-id`
property, which Waybill and RabbitMQ refuse unless it is the login of the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

DIRECT_REPLY: Final = "amq.rabbitmq.reply-to."
SERVER_NAMED: Final = "amq.gen-"
OWN_REPLY: Final = "ojs.reply.{user}."


@dataclass(frozen=True)
class ControlPolicy:
    """The rules of a coordinator.

    A job belongs to the user who pushed it, according to the event of the push; without such an event, to no user. Its
    user, the `trusted` users and the coordinator's own user may cancel, replace and list it. If all programs trust each
    other, set `trusts_everybody`: then anyone may do anything, also with requests without a user.
    """

    trusted: Sequence[str] = ()
    trusts_everybody: bool = False

    def is_trusted(self, user: str | None, own_user: str | None) -> bool:
        """Return whether a user may do everything."""
        return self.trusts_everybody or (user is not None and (user in self.trusted or user == own_user))

    def may_change(self, user: str | None, own_user: str | None, owner: str | None) -> bool:
        """Return whether a user may cancel, replace or release a job of `owner`."""
        return owner is None or user == owner or self.is_trusted(user, own_user)

    @staticmethod
    def may_reply(reply_to: str, user: str | None, prefix: str) -> bool:
        """Return whether a reply may go to a queue: one that the requester could have written to.

        Direct reply-to always goes to the requester, and so does a queue with a name from the broker, which nobody can
        choose or guess. Other names must begin with `ojs.reply.{user}.`, after the prefix of the topology.
        """
        if reply_to.startswith((DIRECT_REPLY, SERVER_NAMED)):
            return True
        return user is not None and reply_to.startswith(prefix + OWN_REPLY.format(user=user))
