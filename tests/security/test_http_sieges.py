"""Attacks on a real server, and on a broker's management API, in a small form; `make siege-http` has the large."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.http_attacks import ATTACKS, HttpAttack
from tests.security.http_siege import HttpSiege
from tests.security.management_attacks import MANAGEMENT_ATTACKS, ManagementAttack, ManagementSiege
from tests.security.tls_attacks import TLS_ATTACKS, HttpTlsSiege, TlsAttack


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpSiege]:
    directory: Path = tmp_path_factory.mktemp("siege")
    with HttpSiege(directory) as besieged:
        yield besieged


@pytest.mark.parametrize(("attack", "count"), [(attack, few) for attack, few, _ in ATTACKS])
def test_an_attack(siege: HttpSiege, attack: HttpAttack, count: int) -> None:
    siege.attack(attack, count)
    siege.check()


@pytest.fixture(scope="module")
def tls_siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpTlsSiege]:
    with HttpTlsSiege(tmp_path_factory.mktemp("tls")) as besieged:
        yield besieged


@pytest.mark.parametrize(("attack", "count"), [(attack, few) for attack, few, _ in TLS_ATTACKS])
def test_an_attack_on_tls(tls_siege: HttpTlsSiege, attack: TlsAttack, count: int) -> None:
    tls_siege.attack(attack, count)
    tls_siege.check()


@pytest.fixture(scope="module")
def management_siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagementSiege]:
    with ManagementSiege(tmp_path_factory.mktemp("management")) as besieged:
        yield besieged


@pytest.mark.parametrize(("attack", "count"), [(attack, few) for attack, few, _ in MANAGEMENT_ATTACKS])
def test_an_attack_on_the_management_api(
    management_siege: ManagementSiege, attack: ManagementAttack, count: int
) -> None:
    management_siege.attack(attack, count)
    management_siege.check()
