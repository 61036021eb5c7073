"""Users of a node: how they prove who they are, and what they may do. Passwords are kept as scrypt hashes."""

import hashlib
import hmac
import ipaddress
from typing import Final

from waybill.engine.host import User
from waybill.model.permission import Permission

SALT_SIZE: Final = 16
_COST: Final = 1 << 12
_BLOCK_SIZE: Final = 8
_KEY_SIZE: Final = 32
CACHE_LIMIT: Final = 1024


class Account:
    """A user as kept: `password_hash` is salt and scrypt key. `loopback_only`: refused from other machines."""

    def __init__(
        self, name: str, password_hash: bytes, permissions: dict[str, Permission], *, loopback_only: bool
    ) -> None:
        self.user = User(name, permissions)
        self.password_hash = password_hash
        self.loopback_only = loopback_only


def hash_password(password: str, salt: bytes) -> bytes:
    """Salt and key in one. `salt` is `SALT_SIZE` random bytes."""
    key = hashlib.scrypt(password.encode(), salt=salt, n=_COST, r=_BLOCK_SIZE, p=1, dklen=_KEY_SIZE)
    return salt + key


class Authenticator:
    """The accounts of a node by name."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        # scrypt is slow on purpose. A connection storm after a restart presents the same few passwords again and again,
        # so the digest of one that was right is remembered, keyed by what would have to change for it to be wrong.
        self._proved: set[bytes] = set()

    def authenticate(self, user: str, password: str, peer_address: str) -> User | None:
        """The user of that name if this is their password and they may come from there, or None."""
        account = self.accounts.get(user)
        if account is None or (account.loopback_only and not is_loopback(peer_address)):
            return None
        return account.user if self._is_password(account, password) else None

    def _is_password(self, account: Account, password: str) -> bool:
        proof = hashlib.sha256(account.password_hash + password.encode("utf-8", "surrogateescape")).digest()
        if proof in self._proved:
            return True
        salt = account.password_hash[:SALT_SIZE]
        try:
            given = hash_password(password, salt)
        except UnicodeEncodeError:
            return False
        if not hmac.compare_digest(given, account.password_hash):
            return False
        if len(self._proved) >= CACHE_LIMIT:
            self._proved.clear()
        self._proved.add(proof)
        return True


def is_loopback(peer_address: str) -> bool:
    """Whether `host:port` is on this machine. What has no host (a connection in process) is."""
    host = peer_address.rpartition(":")[0].strip("[]")
    if not host:
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
