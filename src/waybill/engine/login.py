"""SASL, server side: reads the credentials in a peer's responses, which the node then checks. Shared by all protocols.

login = Login(host, protocol, peer_address, certificate_user)
challenge = login.begin(mechanism, initial_response)
while challenge is not None: send it; challenge = login.respond(response)
login.user        the user, or None: refused
"""

import contextlib
from typing import Final

from waybill.engine.host import Host, User
from waybill.wire.sasl import amqplain, external, plain, scram
from waybill.wire.sasl.errors import MalformedResponse

MECHANISMS: Final = (plain.NAME, amqplain.NAME, scram.NAME)
MECHANISM_SHOWN: Final = 64
ANONYMOUS: Final = "ANONYMOUS"
"""RFC 4505: any peer logs in as the user of `Host.anonymous_login`."""


class Login:
    """One attempt to log in. `certificate_user`: the user in the peer's verified TLS certificate, empty for none.

    `allows_anonymous`: the protocol supports anonymous peers, if the node does.
    """

    def __init__(
        self, host: Host, protocol: str, peer_address: str, certificate_user: str, *, allows_anonymous: bool = False
    ) -> None:
        self.user: User | None = None
        self._host = host
        self._protocol = protocol
        self._peer_address = peer_address
        self._certificate_user = certificate_user
        self._allows_anonymous = allows_anonymous and host.anonymous_login[0] != ""
        self._exchange: scram.ServerExchange | None = None
        self._scram_user = ""
        self._proved: User | None = None

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms for this peer, in the order of RabbitMQ: most clients choose their preferred one anyway."""
        mechanisms = (*MECHANISMS, external.NAME) if self._certificate_user else MECHANISMS
        return (*mechanisms, ANONYMOUS) if self._allows_anonymous else mechanisms

    def begin(self, mechanism: str, response: bytes) -> bytes | None:
        """Take the initial response. Returns a challenge, or None once the login is decided."""
        challenge: bytes | None = None
        if mechanism not in self.mechanisms:
            self._refused(f"the mechanism {mechanism[:MECHANISM_SHOWN]!r} is not offered")
        else:
            try:
                challenge = self._begin(mechanism, response)
            except MalformedResponse:
                self._refused(f"the response is not one of {mechanism}")
        self._count(challenge)
        return challenge

    def anonymous(self) -> User | None:
        """Log in an anonymous peer. Returns None if that is not allowed."""
        if not self._allows_anonymous:
            return None
        return self._host.authenticate_anonymous(self._peer_address)

    def _begin(self, mechanism: str, response: bytes) -> bytes | None:
        if mechanism == ANONYMOUS:
            self.user = self.anonymous()
            return None
        if mechanism == scram.NAME:
            first = scram.parse_client_first(response)
            self._scram_user = first.user
            nonce = self._host.random_name("")
            self._exchange = scram.ServerExchange(first, self._host.scram_keys(first.user), nonce)
            return self._exchange.challenge
        if mechanism == external.NAME:
            if external.parse_response(response) in {"", self._certificate_user}:
                self.user = self._host.user_proved(self._certificate_user, self._peer_address)
            else:
                self._refused(f"the certificate is that of user {self._certificate_user!r}, who may not act for others")
            return None
        parse = plain.parse_response if mechanism == plain.NAME else amqplain.parse_response
        credentials = parse(response)
        if credentials.authorization_identity in {"", credentials.user}:
            self.user = self._host.authenticate(credentials.user, credentials.password, self._peer_address)
        else:
            self._refused("a user may not act for others: the authorization identity is another name")
        return None

    def _refused(self, reason: str) -> None:
        """Log a refusal that does not reach the node."""
        self._host.runtime.operator_log.warning(
            "login refused", f"{self._peer_address}: {reason}", address=self._peer_address
        )

    def _count(self, challenge: bytes | None) -> None:
        if challenge is None:
            self._host.runtime.counters.login_ended(self._protocol, self.user is not None)

    def respond(self, response: bytes) -> bytes | None:
        """Take the response to a challenge. Returns the next one, or None when it is decided."""
        challenge = self._respond(response)
        self._count(challenge)
        return challenge

    def _respond(self, response: bytes) -> bytes | None:
        exchange = self._exchange
        if exchange is None:
            # The last challenge is the server's own proof. The reply to it is empty.
            self.user = self._proved if response == b"" else None
            return None
        self._exchange = None
        final: bytes | None = None
        with contextlib.suppress(MalformedResponse):
            final = exchange.finish(response)
        self._proved = self._host.scram_finished(self._scram_user, self._peer_address, is_proved=final is not None)
        return final if self._proved is not None else None
