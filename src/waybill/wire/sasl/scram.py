"""SCRAM-SHA-256 (RFC 5802, RFC 7677): both sides prove that they know the password, and neither reveals it.

    client  n,,n=user,r=C                    client-first: C is the client's nonce
    server  r=C+S,s=salt,i=iterations        server-first: S is the server's nonce
    client  c=biws,r=C+S,p=proof             client-final: biws is the header `n,,` again, in base64
    server  v=signature                      server-final

Channel binding is not offered: a client that could do it, and thinks that we cannot (`y`), is right.
"""

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata
from dataclasses import dataclass, field
from typing import Final

from waybill.wire.sasl.errors import MalformedResponse

NAME: Final = "SCRAM-SHA-256"
KEY_SIZE: Final = 32
NONCE_LIMIT: Final = 256
MESSAGE_LIMIT: Final = 4096
PROOF_LIMIT: Final = 64
# RFC 7677 asks for 4096 at least; more than a million is an attack on the client.
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 1_000_000


@dataclass(frozen=True)
class ScramKeys:
    """The keys that a server stores for a user. With stolen keys one can act as the server, but not log in."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True)
class ClientFirst:
    """`bare` is the message without its header `header`."""

    user: str
    nonce: str
    header: str
    bare: str


def derive_keys(password: str, salt: bytes, iterations: int) -> ScramKeys:
    """Raises MalformedResponse for a password that SASLprep (RFC 4013) prohibits."""
    salted = hashlib.pbkdf2_hmac("sha256", prepare(password).encode(), salt, iterations)
    client_key = _hmac(salted, b"Client Key")
    return ScramKeys(salt, iterations, hashlib.sha256(client_key).digest(), _hmac(salted, b"Server Key"))


def prepare(text: str) -> str:
    """SASLprep (RFC 4013), without its rule for text that runs in both directions."""
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    normal = unicodedata.normalize("NFKC", mapped)
    for character in normal:
        if (
            stringprep.in_table_c21_c22(character)
            or stringprep.in_table_c3(character)
            or stringprep.in_table_c4(character)
            or stringprep.in_table_c5(character)
        ):
            raise MalformedResponse("a password contains a character that SASLprep prohibits")
    return normal


def parse_client_first(response: bytes) -> ClientFirst:
    """Raises MalformedResponse, also for channel binding and for acting as another user."""
    text = _text(response)
    flag, first, rest = text.partition(",")
    identity, second, bare = rest.partition(",")
    if flag not in {"n", "y"} or not first or not second or identity:
        raise MalformedResponse("a SCRAM response begins with n,, or y,,")
    attributes = bare.split(",")
    if len(attributes) < 2 or attributes[0][:2] != "n=" or attributes[1][:2] != "r=":
        raise MalformedResponse("a SCRAM response names a user and a nonce")
    user = attributes[0][2:]
    if "=" in user.replace("=2C", "").replace("=3D", ""):
        raise MalformedResponse("a SCRAM user name has an unknown escape")
    nonce = attributes[1][2:]
    if not nonce or len(nonce) > NONCE_LIMIT or not all("!" <= character <= "~" for character in nonce):
        raise MalformedResponse("a SCRAM nonce is printable, and not too long")
    return ClientFirst(user.replace("=2C", ",").replace("=3D", "="), nonce, f"{flag},,", bare)


class ServerExchange:
    """The server's side of one login. The nonce must be unpredictable: printable ASCII without a comma."""

    def __init__(self, first: ClientFirst, keys: ScramKeys, nonce: str) -> None:
        self._first = first
        self._keys = keys
        self._nonce = first.nonce + nonce
        salt = base64.b64encode(keys.salt).decode()
        self.challenge = f"r={self._nonce},s={salt},i={keys.iterations}".encode()

    def finish(self, response: bytes) -> bytes | None:
        """The server-final message if the client-final proves the password, or None. Raises MalformedResponse."""
        text = _text(response)
        without_proof, separator, proof = text.rpartition(",p=")
        attributes = without_proof.split(",")
        binding = "c=" + base64.b64encode(self._first.header.encode()).decode()
        if not separator or attributes[0] != binding or attributes[1:2] != [f"r={self._nonce}"]:
            raise MalformedResponse("a SCRAM response does not continue the exchange")
        try:
            proved = base64.b64decode(proof[:PROOF_LIMIT], validate=True)
        except (binascii.Error, ValueError):
            raise MalformedResponse("a SCRAM proof is base64") from None
        if len(proved) != KEY_SIZE:
            raise MalformedResponse("a SCRAM proof has the size of a digest")
        message = f"{self._first.bare},{self.challenge.decode()},{without_proof}".encode()
        signature = _hmac(self._keys.stored_key, message)
        client_key = bytes([left ^ right for left, right in zip(proved, signature, strict=True)])
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self._keys.stored_key):
            return None
        return b"v=" + base64.b64encode(_hmac(self._keys.server_key, message))


class ClientExchange:
    """The client's side of one login: send `first`, then the result of `respond`, and `verify` the server's answer.

    The nonce must be unpredictable: printable ASCII without a comma. Raises MalformedResponse for a password that
    SASLprep prohibits.
    """

    def __init__(self, user: str, password: str, nonce: str) -> None:
        if not nonce:
            raise MalformedResponse("a SCRAM login needs a nonce")
        self._password = prepare(password)
        self._nonce = nonce
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._proof_of_server = b""
        self.is_proved = False
        self.first = f"n,,{self._bare}".encode()

    def respond(self, challenge: bytes) -> bytes:
        """The client-final message that answers a server-first. Raises MalformedResponse."""
        text = _text(challenge)
        attributes = text.split(",")
        if [attribute[:2] for attribute in attributes[:3]] != ["r=", "s=", "i="]:
            raise MalformedResponse("a SCRAM challenge has a nonce, a salt and a count of iterations")
        nonce, salt, count = (attribute[2:] for attribute in attributes[:3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise MalformedResponse("a SCRAM challenge adds its own nonce to the client's")
        if not (count.isascii() and count.isdigit()) or not ITERATIONS_MIN <= int(count[:12]) <= ITERATIONS_MAX:
            raise MalformedResponse(f"a SCRAM challenge asks for {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations")
        try:
            salt_octets = base64.b64decode(salt, validate=True)
        except (binascii.Error, ValueError):
            raise MalformedResponse("a SCRAM salt is base64") from None
        salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), salt_octets, int(count))
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._bare},{text},{without_proof}".encode()
        client_key = _hmac(salted, b"Client Key")
        signature = _hmac(hashlib.sha256(client_key).digest(), message)
        proof = bytes([left ^ right for left, right in zip(client_key, signature, strict=True)])
        self._proof_of_server = _hmac(_hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, challenge: bytes) -> None:
        """Check the server-final message. Raises MalformedResponse if the server does not know the keys either."""
        expected = b"v=" + base64.b64encode(self._proof_of_server)
        if not self._proof_of_server or not hmac.compare_digest(challenge, expected):
            raise MalformedResponse("the server does not prove that it knows the password")
        self.is_proved = True


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _text(response: bytes) -> str:
    if len(response) > MESSAGE_LIMIT or b"\0" in response:
        raise MalformedResponse("a SCRAM response is too long, or contains a NUL")
    try:
        return response.decode()
    except UnicodeDecodeError:
        raise MalformedResponse("a SCRAM response is UTF-8") from None
