"""Guessing passwords: each wrong one costs a slow hash, so an address has only so many a second."""

import base64
import hashlib
import hmac

import pytest

from tests.engine.amqp091.peer import Cut, NodeBench
from waybill.engine.login import Login
from waybill.model.operator_log import OperatorLog
from waybill.node import accounts as accounts_module
from waybill.node import passwords
from waybill.node.accounts import Accounts
from waybill.node.login_guard import ADDRESS_LIMIT, BURST, LoginGuard
from waybill.wire.amqp091.frames import method_frame
from waybill.wire.amqp091.methods_connection import ConnectionStartOk
from waybill.wire.amqp10.frames import sasl_frame
from waybill.wire.amqp10.security import SaslInit

ADDRESS = "192.0.2.1:40000"


def test_an_address_that_guesses_must_wait() -> None:
    bench = NodeBench(Cut.WHOLE)
    node = bench.node
    node.administration.put_user("bob", "right")
    node.administration.put_user("amy", "known")
    assert node.authenticate("amy", "known", ADDRESS) is not None
    for number in range(BURST):
        assert node.authenticate("bob", f"wrong{number}", ADDRESS) is None
    assert node.authenticate("bob", "right", ADDRESS) is None
    assert node.authenticate("amy", "known", ADDRESS) is not None
    assert node.authenticate("bob", "right", "192.0.2.2:40000") is not None
    node.administration.put_user("bob", "other")
    bench.node.runtime.now += 1.0
    assert node.authenticate("bob", "other", ADDRESS) is not None


def test_guesses_come_back_with_time_and_never_more_than_at_first() -> None:
    guard = LoginGuard()
    for _ in range(BURST):
        guard.guessed_wrong(ADDRESS, 0.0)
    assert not guard.may_guess(ADDRESS, 0.5)
    assert guard.may_guess(ADDRESS, 1.0)
    for _ in range(BURST):
        guard.guessed_wrong(ADDRESS, 1e6)
    assert not guard.may_guess(ADDRESS, 1e6)


def test_a_network_of_64_bits_is_one_address() -> None:
    guard = LoginGuard()
    for number in range(BURST):
        guard.guessed_wrong(f"[2001:db8::{number:x}]:1", 0.0)
    assert not guard.may_guess("[2001:db8::ffff]:1", 0.0)
    assert guard.may_guess("[2001:db8:0:1::1]:1", 0.0)


def test_what_is_remembered_is_bounded() -> None:
    guard = LoginGuard()
    for number in range(ADDRESS_LIMIT + 10):
        guard.guessed_wrong(f"host{number}:1", 0.0)
    assert len(guard._buckets) == ADDRESS_LIMIT


def scram(bench: NodeBench, user: str, password: str, address: str = ADDRESS) -> bool:
    """One whole exchange, by hand."""
    login = Login(bench.node, "amqp091", address, "")
    challenge = login.begin("SCRAM-SHA-256", f"n,,n={user},r=abc".encode())
    assert challenge is not None
    fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    without_proof = f"c=biws,r={fields['r']}"
    message = f"n={user},r=abc,{challenge.decode()},{without_proof}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    if login.respond(f"{without_proof},p={proof}".encode()) is not None:
        login.respond(b"")
    return login.user is not None


def test_scram_guesses_count_as_others_do() -> None:
    bench = NodeBench(Cut.WHOLE)
    bench.node.administration.put_user("bob", "right")
    bench.node.administration.put_user("amy", "known")
    assert scram(bench, "amy", "known")
    for number in range(BURST):
        assert not scram(bench, "bob", f"wrong{number}")
    assert not scram(bench, "bob", "right")
    assert bench.node.authenticate("bob", "right", ADDRESS) is None
    assert scram(bench, "amy", "known")
    assert scram(bench, "bob", "right", "192.0.2.2:40000")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM"])
def test_unknown_users_are_guesses_too(mechanism: str) -> None:
    bench = NodeBench(Cut.WHOLE)
    bench.node.administration.put_user("bob", "right")
    for number in range(BURST):
        if mechanism == "PLAIN":
            assert bench.node.authenticate(f"nobody{number}", "x", ADDRESS) is None
        else:
            assert not scram(bench, f"nobody{number}", "x")
    assert bench.node.authenticate("bob", "right", ADDRESS) is None


def test_an_address_without_logins_learns_nothing_of_passwords_that_were_right_elsewhere() -> None:
    bench = NodeBench(Cut.WHOLE)
    bench.node.administration.put_user("amy", "known")
    assert bench.node.authenticate("amy", "known", "192.0.2.2:40000") is not None
    for number in range(BURST):
        assert bench.node.authenticate("amy", f"wrong{number}", ADDRESS) is None
    assert bench.node.authenticate("amy", "known", ADDRESS) is None


def test_whoever_it_is_costs_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = NodeBench(Cut.WHOLE)
    administration = bench.node.administration
    administration.put_user("bob", "right")
    administration.put_user("certificate-only", "")
    digest = b"salt" + hashlib.sha256(b"saltright").digest()
    imported = passwords.Credential(passwords.RABBITMQ_SHA256, digest, None)
    administration.put_user_with_credential("imported", imported, ())
    work: list[bytes] = []
    scrypt = hashlib.scrypt

    def counted(octets: bytes, *, salt: bytes, n: int, r: int, p: int, dklen: int) -> bytes:
        work.append(octets)
        return scrypt(octets, salt=salt, n=n, r=r, p=p, dklen=dklen)

    monkeypatch.setattr(hashlib, "scrypt", counted)
    users = ("bob", "guest", "certificate-only", "imported", "nobody")
    for user in users:
        assert bench.node.authenticate(user, "wrong", ADDRESS) is None
    assert work == [b"wrong"] * len(users)


class Log(OperatorLog):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, event: str, detail: str, user: str = "", address: str = "") -> None:
        self.lines.append(f"{event}: {detail}")


def test_the_operator_hears_who_was_refused_from_where_and_why() -> None:
    bench = NodeBench(Cut.WHOLE)
    log = Log()
    accounts = Accounts(bench.store, bench.random.randbytes, log)
    accounts.put("guest", accounts.credential("guest"), ())
    accounts.set_restrictions("guest", loopback_only=True, connection_max=-1, channel_max=-1)
    accounts.authenticate("guest", "wrong", "127.0.0.1:5", 0.0)
    accounts.authenticate("guest", "guest", ADDRESS, 0.0)
    accounts.authenticate("no\nbody", "x", ADDRESS, 0.0)
    accounts.user_proved("CN=x", ADDRESS)
    accounts.scram_finished("guest", ADDRESS, 0.0, is_proved=False)
    accounts.authenticate_anonymous("guest", "guest", ADDRESS)
    assert log.lines == [
        "login refused: user 'guest' from 127.0.0.1:5: the password is wrong",
        f"login refused: user 'guest' from {ADDRESS}: this user may log in from this machine only",
        f"login refused: user 'no\\nbody' from {ADDRESS}: there is no such user",
        f"login refused: user 'CN=x' from {ADDRESS}: there is no such user",
        f"login refused: user 'guest' from {ADDRESS}: the password is wrong",
        f"login refused: user 'guest' from {ADDRESS}: {accounts_module.ELSEWHERE}; the peer gave no user name",
    ]


def test_peers_without_a_name_neither_guess_nor_are_kept_out_by_guesses() -> None:
    bench = NodeBench(Cut.WHOLE)
    loopback = "127.0.0.1:5"
    for number in range(BURST):
        assert bench.node.authenticate("bob", f"wrong{number}", loopback) is None
    assert bench.node.authenticate_anonymous(loopback) is not None
    assert bench.node.authenticate_anonymous(ADDRESS) is None
    bench.node.administration.put_user("guest", "changed")
    assert bench.node.authenticate_anonymous(loopback) is None
    assert bench.node.authenticate_anonymous(loopback) is None


@pytest.mark.parametrize("protocol", ["0-9-1", "1.0"])
def test_passwords_that_come_at_once_take_turns(protocol: str) -> None:
    """Each takes 25 ms of the thread that serves everybody, so others are served after two of them."""
    bench = NodeBench(Cut.WHOLE)
    runtime = bench.node.runtime
    accounts = bench.node.administration.accounts
    if protocol == "0-9-1":
        start_ok = ConnectionStartOk({}, "PLAIN", b"\0bob\0wrong", "en_US")
        octets = b"AMQP\x00\x00\x09\x01" + method_frame(0, start_ok)
    else:
        octets = b"AMQP\x03\x01\x00\x00" + sasl_frame(SaslInit("PLAIN", b"\0bob\0wrong").encode())
    wires = []
    for _ in range(7):
        bench.plug()
        wires.append(bench.wires[-1])
    for wire in wires:
        wire.engine.receive_data(octets, bench.now)
    checks = [accounts.slow_checks]
    while checks[-1] < len(wires):
        runtime.begin_turn()
        bench.node.work(bench.now)
        checks.append(accounts.slow_checks)
    assert checks == [2, 4, 6, 7]
    bench.settle()
    assert all(wire.engine.closed or wire.output.data for wire in wires)
