"""The users of a node: credentials and permissions, and how the store keeps them."""

import ipaddress
from collections.abc import Callable
from typing import Final

from waybill.engine.host import User
from waybill.engine.scram import ScramKeys
from waybill.model.errors import InvalidArgument, NotFound
from waybill.model.operator_log import OperatorLog
from waybill.model.permission import Permission, TopicPermission
from waybill.model.store import Store
from waybill.node.login_guard import LoginGuard
from waybill.node.passwords import SALT_SIZE, SCRYPT, Credential, PasswordCheck, make_credential, nobodys_keys

USER: Final = "user"
PERMISSION: Final = "permission"
TOPIC_PERMISSION: Final = "topic_permission"
NAME_LIMIT: Final = 255
SECRET_SIZE: Final = 32

# Why a login is refused, for the operator's log. The peer does not learn it.
NOBODY: Final = "there is no such user"
WRONG: Final = "the password is wrong"
ELSEWHERE: Final = "this user may log in from this machine only"
TOO_MANY: Final = "too many wrong passwords from this address; wait before the next attempt"


class Account:
    """A user as stored. `loopback_only`: refused from other machines. `connection_max`: negative for no limit."""

    def __init__(self, name: str, credential: Credential) -> None:
        self.user = User(name, {})
        self.credential = credential
        self.loopback_only = False
        self.connection_max = -1


class Accounts:
    """The users by name, in memory and in the store. `random_bytes(n)` returns n unpredictable bytes."""

    def __init__(self, store: Store, random_bytes: Callable[[int], bytes], log: OperatorLog) -> None:
        self.by_name: dict[str, Account] = {}
        self._store = store
        self._random_bytes = random_bytes
        self._check = PasswordCheck()
        self._guard = LoginGuard()
        self._log = log
        self._not_anonymous: Credential | None = None
        self._secret = random_bytes(SECRET_SIZE)

    def recover(self) -> None:
        """Load the stored accounts."""
        for name, value in self._store.definitions(USER):
            account = Account(name, _credential_of(value))
            account.user.tags = _tags_of(value)
            account.user.channel_max = _integer_of(value, "channel_max")
            account.connection_max = _integer_of(value, "connection_max")
            account.loopback_only = value.get("loopback_only") is True
            self.by_name[name] = account
        for _, value in self._store.definitions(PERMISSION):
            self._account_of(value).user.permissions[str(value["virtual_host"])] = Permission(
                str(value["configure"]), str(value["write"]), str(value["read"])
            )
        for _, value in self._store.definitions(TOPIC_PERMISSION):
            user = self._account_of(value).user
            virtual_host = str(value["virtual_host"])
            user.topic_permissions[virtual_host, str(value["exchange"])] = TopicPermission(
                str(value["write"]), str(value["read"]), user.name, virtual_host
            )

    # --- logging in ---

    @property
    def slow_checks(self) -> int:
        """How many slow hashes logins have computed so far."""
        return self._check.slow_count

    def has_proved(self, name: str, password: str) -> bool:
        """Whether this password was verified recently and is cached: then verifying it again needs no slow hash."""
        account = self.by_name.get(name)
        return account is not None and self._check.is_proved(account.credential, password)

    def authenticate(self, name: str, password: str, peer_address: str, now: float) -> User | None:
        """The user of that name if the password is right and they may log in from the address, else None.

        After too many wrong passwords, an address is refused for a while, except for users who have logged in from
        there before. An unknown user takes as long as a wrong password.
        """
        account = self.by_name.get(name)
        guard = self._guard
        if not guard.may_guess(peer_address, now) and not (
            account is not None
            and guard.is_known(name, peer_address)
            and self._check.is_proved(account.credential, password)
        ):
            self._refused(name, peer_address, TOO_MANY)
            return None
        if account is None:
            self._check.check_nobody(password)
            reason = NOBODY
        elif not self._check.is_right(account.credential, password):
            reason = WRONG
        elif account.loopback_only and not is_loopback(peer_address):
            reason = ELSEWHERE
        else:
            guard.logged_in(name, peer_address)
            self._renew(account, password)
            return account.user
        guard.guessed_wrong(peer_address, now)
        self._refused(name, peer_address, reason)
        return None

    def authenticate_anonymous(self, name: str, password: str, peer_address: str) -> User | None:
        """The user of anonymous peers. It is not a guess: no hash is computed, and none counted."""
        account = self.by_name.get(name)
        if account is None:
            reason = NOBODY
        elif account.loopback_only and not is_loopback(peer_address):
            reason = ELSEWHERE
        elif account.credential is self._not_anonymous:
            reason = WRONG
        elif not self._check.is_right(account.credential, password):
            self._not_anonymous = account.credential
            reason = WRONG
        else:
            return account.user
        self._refused(name, peer_address, f"{reason}; the peer gave no user name")
        return None

    def user_proved(self, name: str, peer_address: str) -> User | None:
        """The user of that name, whom a TLS certificate names, if they may log in from there; or None."""
        account = self.by_name.get(name)
        if account is None or (account.loopback_only and not is_loopback(peer_address)):
            self._refused(name, peer_address, NOBODY if account is None else ELSEWHERE)
            return None
        return account.user

    def scram_keys(self, name: str) -> ScramKeys:
        """The keys of a user, or keys that no password fits."""
        account = self.by_name.get(name)
        keys = None if account is None else account.credential.scram
        return keys or nobodys_keys(name, self._secret)

    def scram_finished(self, name: str, peer_address: str, now: float, *, is_proved: bool) -> User | None:
        """The user, if a SCRAM exchange has proved the password. A wrong proof counts as a guess."""
        account = self.by_name.get(name)
        guard = self._guard
        if not guard.may_guess(peer_address, now) and not guard.is_known(name, peer_address):
            reason = TOO_MANY
        elif account is None:
            reason = NOBODY
        elif not is_proved:
            reason = WRONG
        elif account.loopback_only and not is_loopback(peer_address):
            reason = ELSEWHERE
        else:
            guard.logged_in(name, peer_address)
            return account.user
        if reason != TOO_MANY:
            guard.guessed_wrong(peer_address, now)
        self._refused(name, peer_address, reason)
        return None

    def _renew(self, account: Account, password: str) -> None:
        """Replace an imported hash, which is weak, by ours, now that the password is known."""
        if account.credential.algorithm != SCRYPT:
            account.credential = make_credential(password, self._random_bytes(SALT_SIZE))
            self._save(account)

    def _refused(self, name: str, peer_address: str, reason: str) -> None:
        user = name[:NAME_LIMIT]
        self._log.warning("login refused", f"user {user!r} from {peer_address}: {reason}", user, peer_address)

    # --- administration ---

    def account(self, name: str) -> Account:
        """Raises `NotFound`."""
        account = self.by_name.get(name)
        if account is None:
            raise NotFound(f"no user '{name}'")
        return account

    def put(self, name: str, credential: Credential, tags: tuple[str, ...]) -> Account:
        """Make a user, or change the password and tags of one."""
        if not name or len(name.encode("utf-8", "surrogateescape")) > NAME_LIMIT:
            raise InvalidArgument(f"a user's name has 1 to {NAME_LIMIT} bytes")
        account = self.by_name.get(name)
        if account is None:
            account = Account(name, credential)
            self.by_name[name] = account
        account.credential = credential
        account.user.tags = tags
        self._save(account)
        return account

    def credential(self, password: str) -> Credential:
        return make_credential(password, self._random_bytes(SALT_SIZE))

    def remove(self, name: str) -> None:
        user = self.account(name).user
        for virtual_host in list(user.permissions):
            self.clear_permission(name, virtual_host)
        for virtual_host, exchange in list(user.topic_permissions):
            self.clear_topic_permission(name, virtual_host, exchange)
        del self.by_name[name]
        self._store.undefine(USER, name)

    def set_restrictions(self, name: str, *, loopback_only: bool, connection_max: int, channel_max: int) -> None:
        account = self.account(name)
        account.loopback_only = loopback_only
        account.connection_max = connection_max
        account.user.channel_max = channel_max
        self._save(account)

    def set_permission(self, name: str, virtual_host: str, configure: str, write: str, read: str) -> None:
        """Raises `NotFound`, and `InvalidArgument` for an invalid pattern."""
        self.account(name).user.permissions[virtual_host] = Permission(configure, write, read)
        self._store.define(
            PERMISSION,
            f"{name}\0{virtual_host}",
            {"user": name, "virtual_host": virtual_host, "configure": configure, "write": write, "read": read},
        )

    def clear_permission(self, name: str, virtual_host: str) -> None:
        if self.account(name).user.permissions.pop(virtual_host, None) is not None:
            self._store.undefine(PERMISSION, f"{name}\0{virtual_host}")

    def set_topic_permission(self, name: str, virtual_host: str, exchange: str, write: str, read: str) -> None:
        """Raises `NotFound`, and `InvalidArgument` for an invalid pattern."""
        permission = TopicPermission(write, read, name, virtual_host)
        self.account(name).user.topic_permissions[virtual_host, exchange] = permission
        self._store.define(
            TOPIC_PERMISSION,
            f"{name}\0{virtual_host}\0{exchange}",
            {"user": name, "virtual_host": virtual_host, "exchange": exchange, "write": write, "read": read},
        )

    def clear_topic_permission(self, name: str, virtual_host: str, exchange: str) -> None:
        if self.account(name).user.topic_permissions.pop((virtual_host, exchange), None) is not None:
            self._store.undefine(TOPIC_PERMISSION, f"{name}\0{virtual_host}\0{exchange}")

    def _account_of(self, value: dict[str, object]) -> Account:
        return self.by_name[str(value["user"])]

    def _save(self, account: Account) -> None:
        credential = account.credential
        value: dict[str, object] = {
            "algorithm": credential.algorithm,
            "hash": credential.hash,
            "tags": list(account.user.tags),
            "loopback_only": account.loopback_only,
            "connection_max": account.connection_max,
            "channel_max": account.user.channel_max,
        }
        keys = credential.scram
        if keys is not None:
            value["scram"] = [keys.salt, keys.iterations, keys.stored_key, keys.server_key]
        self._store.define(USER, account.user.name, value)


def _credential_of(value: dict[str, object]) -> Credential:
    password_hash = value.get("hash")
    scram = value.get("scram")
    keys: ScramKeys | None = None
    if isinstance(scram, (list, tuple)) and len(scram) == 4:
        keys = ScramKeys(bytes(scram[0]), int(scram[1]), bytes(scram[2]), bytes(scram[3]))
    return Credential(str(value.get("algorithm")), password_hash if isinstance(password_hash, bytes) else b"", keys)


def _tags_of(value: dict[str, object]) -> tuple[str, ...]:
    tags = value.get("tags")
    return tuple(str(tag) for tag in tags) if isinstance(tags, (list, tuple)) else ()


def _integer_of(value: dict[str, object], name: str) -> int:
    number = value.get(name)
    return number if isinstance(number, int) else -1


def is_loopback(peer_address: str) -> bool:
    """Whether `host:port` is on this machine. In-process connections, which have no host, are."""
    host = peer_address.rpartition(":")[0].strip("[]")
    if not host:
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
