"""Claims the terminus of a link that is being attached, without a change while the link may still be refused.

claim = Claim(...)            checks the limits
claim.terminus                the existing terminus, or a new one that is not listed yet
claim.take()                  takes the terminus; a link that has it loses it (2.6.1), and another address replaces it
claim.give_up()               the link is refused: deletes what was created for a new terminus
"""

from waybill.engine.amqp10.server.faults import link_fault
from waybill.engine.amqp10.server.session_host import SessionHost
from waybill.engine.amqp10.termini import EVENTS, STOLEN_LINK, Terminus
from waybill.wire.amqp10.error import INVALID_FIELD, RESOURCE_LIMIT_EXCEEDED
from waybill.wire.amqp10.messaging import DURABLE_NONE, DURABLE_UNSETTLED_STATE, EXPIRE_NEVER
from waybill.wire.amqp10.performatives import ROLE_RECEIVER, Attach


class Claim:
    """`address`: that the terminus must have, None for any. `is_new`: replace an existing terminus.

    Raises a link fault for an unknown policy, and if the user may keep no more links.
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
            raise link_fault(INVALID_FIELD, f"'{self._expiry_policy}' is not a terminus-expiry-policy")
        if self._durable > DURABLE_UNSETTLED_STATE:
            raise link_fault(INVALID_FIELD, f"{self._durable} is not a terminus-durability")
        self._user = connection.user.name
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
                "links kept",
                f"{refusal}: remove some, as the user or by administration.remove_link",
                self._user,
                connection.peer_address,
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

    def take(self) -> None:
        """Take the terminus for this link, and configure it as requested."""
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
        """Delete what was created for a new terminus. An existing one is not changed."""
        if not self.is_resumed and not self.terminus.is_listed:
            self.terminus.discard()
        elif not self.is_resumed:
            self.terminus.destroy()


def found_terminus(connection: SessionHost, attach: Attach) -> Terminus | None:
    """The existing terminus of the link, by user, container-id, name and direction."""
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
