"""Stored passwords: our own scrypt hashes, and RabbitMQ's salted SHA-256 of imported users."""

import hashlib
import hmac
from typing import Final

from waybill.engine.scram import ITERATIONS, KEY_SIZE, ScramKeys, make_keys
from waybill.model.errors import InvalidArgument

SCRYPT: Final = "waybill_scrypt"
RABBITMQ_SHA256: Final = "rabbit_password_hashing_sha256"
SALT_SIZE: Final = 16
RABBITMQ_SALT_SIZE: Final = 4
_COST: Final = 1 << 12
_BLOCK_SIZE: Final = 8
_HASH_SIZE: Final = 32
PASSWORD_MAX: Final = 1024
CACHE_LIMIT: Final = 1024


class Credential:
    """The stored form of a password. `hash`: salt and digest in one, empty if no password logs in.

    `scram` is None for an imported password until it has been used once.
    """

    def __init__(self, algorithm: str, password_hash: bytes, scram: ScramKeys | None) -> None:
        self.algorithm = algorithm
        self.hash = password_hash
        self.scram = scram


def make_credential(password: str, salt: bytes) -> Credential:
    """`salt`: `SALT_SIZE` random bytes. A credential for an empty password never allows a login.

    Raises InvalidArgument for a password that is too long.
    """
    if len(password) > PASSWORD_MAX:
        # SASLprep looks at each character.
        raise InvalidArgument(f"a password must have at most {PASSWORD_MAX} characters")
    octets = password.encode("utf-8", "surrogateescape")
    if not octets:
        return Credential(SCRYPT, b"", None)
    return Credential(SCRYPT, salt + stretch(octets, salt), make_keys(password, salt, ITERATIONS))


def nobodys_keys(user: str, secret: bytes) -> ScramKeys:
    """Keys that no password fits. They are constant for a name, so that asking twice reveals nothing."""
    salt = hmac.digest(secret, b"salt " + user.encode("utf-8", "surrogateescape"), "sha256")[:SALT_SIZE]
    key = hmac.digest(secret, salt, "sha256")[:KEY_SIZE]
    return ScramKeys(salt, ITERATIONS, key, key)


class PasswordCheck:
    """Compares passwords with credentials, and caches correct ones.

    scrypt is slow on purpose. After a restart many connections present the same few passwords, so the digest of a
    correct one is cached, with a key that changes with the credential.
    """

    def __init__(self) -> None:
        self.slow_count = 0
        """How many slow hashes were computed."""
        self._proved: set[bytes] = set()

    def is_proved(self, credential: Credential, password: str) -> bool:
        """Whether the password is in the cache; that costs almost nothing."""
        return bool(credential.hash) and _proof(credential, password) in self._proved

    def check_nobody(self, password: str) -> None:
        """Take as long as for a wrong password, so that timing does not reveal which users exist."""
        self.slow_count += 1
        octets = password.encode("utf-8", "surrogateescape")
        hmac.compare_digest(stretch(octets, hashlib.sha256(octets).digest()[:SALT_SIZE]), b"")

    def is_right(self, credential: Credential, password: str) -> bool:
        """Takes the same time for any credential, right or wrong, unless the password is in the cache."""
        if not credential.hash:
            self.check_nobody(password)
            return False
        octets = password.encode("utf-8", "surrogateescape")
        proof = _proof(credential, password)
        if proof in self._proved:
            return True
        if credential.algorithm == SCRYPT:
            self.slow_count += 1
            salt = credential.hash[:SALT_SIZE]
            given = salt + stretch(octets, salt)
        elif credential.algorithm == RABBITMQ_SHA256:
            salt = credential.hash[:RABBITMQ_SALT_SIZE]
            given = salt + hashlib.sha256(salt + octets).digest()
            self.check_nobody(password)
        else:
            self.check_nobody(password)
            return False
        if not hmac.compare_digest(given, credential.hash):
            return False
        if len(self._proved) >= CACHE_LIMIT:
            self._proved.clear()
        self._proved.add(proof)
        return True


def _proof(credential: Credential, password: str) -> bytes:
    return hashlib.sha256(credential.hash + password.encode("utf-8", "surrogateescape")).digest()


def stretch(octets: bytes, salt: bytes) -> bytes:
    """The scrypt digest of a password."""
    return hashlib.scrypt(octets, salt=salt, n=_COST, r=_BLOCK_SIZE, p=1, dklen=_HASH_SIZE)
