"""The attacks of `tests.security.http_attacks` on a real server in a small form; the large: `make siege-http`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.http_attacks import ATTACKS, HttpAttack
from tests.security.http_siege import HttpSiege


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpSiege]:
    directory: Path = tmp_path_factory.mktemp("siege")
    with HttpSiege(directory) as besieged:
        yield besieged


@pytest.mark.parametrize(("attack", "count"), [(attack, few) for attack, few, _ in ATTACKS])
def test_an_attack(siege: HttpSiege, attack: HttpAttack, count: int) -> None:
    attack(siege, count)
    siege.serve(3)
    siege.check()
