"""The terminus of a link that is being attached: found or new, and nobody's loss as long as the link may be refused.

claim = Claim(...)            the limits are asked; nothing has changed
claim.terminus                what to make nodes for; a new one is not known to anybody yet
claim.take()                  nothing refuses any more: whoever has the terminus loses it (2.6.1), another address is
                              another terminus
claim.give_up()               the link is refused: what was made for a new terminus goes, what was there stays as it was
"""

from waybill.engine.amqp10.server.faults import link_fault
from waybill.engine.amqp10.server.session_host import SessionHost
from waybill.engine.amqp10.termini import EVENTS, STOLEN_LINK, Terminus
from waybill.model.growth import check_growth
from waybill.wire.amqp10.error import INVALID_FIELD, RESOURCE_LIMIT_EXCEEDED
from waybill.wire.amqp10.messaging import DURABLE_NONE, DURABLE_UNSETTLED_STATE, EXPIRE_NEVER
from waybill.wire.amqp10.performatives import ROLE_RECEIVER, Attach


class Claim:
    """`address`: of the terminus that is wanted, None for whatever it has; `is_new`: none that is there will do.

    Raises a link fault for a policy that is none, and if the user has too many links that are kept.
    """

    def __init__(
        self,
        connection: SessionHost,
        attach: Attach,
        asked: tuple[int, str, int],
        address: str | None,
        *,
        is_new: bool = False,
    ) -> None:
        self._durable, self._expiry_policy, self._timeout_s = asked
        if self._expiry_policy not in EVENTS:
            raise link_fault(INVALID_FIELD, f"'{self._expiry_policy}' is no terminus-expiry-policy")
        if self._durable > DURABLE_UNSETTLED_STATE:
            raise link_fault(INVALID_FIELD, f"{self._durable} is no terminus-durability")
        self._user = connection.user.name
        self._runtime = connection.host.runtime
        self._termini = connection.host.termini
        self._found = found_terminus(connection, attach)
        found = self._found
        self.is_resumed = found is not None and not is_new and _may_resume(found, address)
        refusal = self._termini.refusal(
            self._user,
            found,
            is_lasting=self._timeout_s > 0 or self._expiry_policy == EXPIRE_NEVER,
            is_durable=self._durable != DURABLE_NONE,
        )
        if refusal:
            connection.host.runtime.operator_log.warning(
                "links kept", f"{refusal}: remove some, as the user or by administration.remove_link"
            )
            raise link_fault(RESOURCE_LIMIT_EXCEEDED, refusal)
        if found is not None and self.is_resumed:
            self.terminus = found
        else:
            self.terminus = Terminus(
                self._termini,
                connection.virtual_host,
                self._user,
                connection.container_id,
                attach.name,
                is_source=attach.role == ROLE_RECEIVER,
            )

    def check_growth(self) -> None:
        """A new durable terminus takes disk. Raises an error of the model if there is too little left."""
        terminus = self.terminus
        if self._durable and not terminus.is_saved:
            check_growth(self._runtime, "a durable terminus")

    def take(self) -> None:
        """Make it this link's, as it was asked for."""
        terminus = self.terminus
        found = self._found
        if found is not None:
            found.is_moving = True
            if found.link is not None:
                found.link.detach(STOLEN_LINK, closed=False)
            found.is_moving = False
            if self.is_resumed:
                self._termini.claim(found, self._user)
            else:
                found.destroy()
        terminus.configure(self._durable, self._expiry_policy, self._timeout_s)
        if not terminus.is_listed:
            self._termini.add(terminus)

    def give_up(self) -> None:
        """Undo what was made for it, if that is nothing of an older link."""
        if not self.is_resumed and not self.terminus.is_listed:
            self.terminus.discard()
        elif not self.is_resumed:
            self.terminus.destroy()


def found_terminus(connection: SessionHost, attach: Attach) -> Terminus | None:
    """The terminus that this user's link of this name has."""
    return connection.host.termini.find(
        connection.virtual_host.name,
        connection.user.name,
        connection.container_id,
        attach.name,
        is_source=attach.role == ROLE_RECEIVER,
    )


def _may_resume(found: Terminus, address: str | None) -> bool:
    if address is not None and found.address != address:
        return False
    return found.link is None or not found.goes_with(0)
