"""Which requests a coordinator accepts from whom.

A control queue is bound to the exchange that jobs are pushed to, so everyone who may push may send requests. The
coordinator executes them with its own permissions. So it checks the user that the broker has verified: the `user-id`
property, which Waybill and RabbitMQ refuse unless it is the name that the connection has logged in with.
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

    A job belongs to the user who has pushed it, as the events of the push tell; one of which no event tells belongs to
    nobody. Its user, the `trusted` users and the coordinator's own may cancel and replace a job, and list it. Where all
    programs trust each other, `trusts_everybody` lets anybody do anything, as requests without a user.
    """

    trusted: Sequence[str] = ()
    trusts_everybody: bool = False

    def is_trusted(self, user: str | None, own_user: str | None) -> bool:
        """Say whether a user may do anything."""
        return self.trusts_everybody or (user is not None and (user in self.trusted or user == own_user))

    def may_change(self, user: str | None, own_user: str | None, owner: str | None) -> bool:
        """Say whether a user may cancel, replace or give up a job of `owner`."""
        return owner is None or user == owner or self.is_trusted(user, own_user)

    @staticmethod
    def may_reply(reply_to: str, user: str | None, prefix: str) -> bool:
        """Return whether a reply may go to a queue: one that the requester could have written to.

        Direct reply-to goes to whoever has asked, and so does a queue named by the broker, whose name nobody can choose
        or guess. Another name must be below `ojs.reply.{user}.`, behind the prefix of the topology.
        """
        if reply_to.startswith((DIRECT_REPLY, SERVER_NAMED)):
            return True
        return user is not None and reply_to.startswith(prefix + OWN_REPLY.format(user=user))
