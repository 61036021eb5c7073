"""The attacks of `sieges` and `tls_attacks` on a real broker, each in a small form: `make siege` has the large ones."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.siege import Siege
from tests.security.sieges import ATTACKS, Attack
from tests.security.tls_attacks import TLS_ATTACKS, BrokerTlsSiege, TlsAttack


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    directory: Path = tmp_path_factory.mktemp("siege")
    with Siege(directory) as besieged:
        yield besieged


@pytest.mark.parametrize(("attack", "count"), [(attack, few) for attack, few, _ in ATTACKS])
def test_an_attack(siege: Siege, attack: Attack, count: int) -> None:
    siege.attack(attack, count)
    siege.check()
    siege.retreat()


@pytest.fixture(scope="module")
def tls_siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerTlsSiege]:
    with BrokerTlsSiege(tmp_path_factory.mktemp("tls")) as besieged:
        yield besieged


@pytest.mark.parametrize(("attack", "count"), [(attack, few) for attack, few, _ in TLS_ATTACKS])
def test_an_attack_on_tls(tls_siege: BrokerTlsSiege, attack: TlsAttack, count: int) -> None:
    tls_siege.attack(attack, count)
    tls_siege.check()
