"""The Django example with the real framework: transactions, the outbox, commands, the admin, on a real broker."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program_environment import program_environment
from waybill.testing import TestBroker

SCRIPT = Path(__file__).with_name("django_scenario.py")


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as broker:
        yield broker


def environment(broker: TestBroker, repository: Path, tmp_path: Path) -> dict[str, str]:
    return program_environment(
        DJANGO_SETTINGS_MODULE="examples.web.django_shop.settings",
        SHOP_DATABASE=str(tmp_path / "shop.sqlite"),
        WAYBILL_URL=broker.uri(),
    )


def test_the_shop(broker: TestBroker, repository: Path, tmp_path: Path) -> None:
    """Django holds one configuration for a process, so the scenario has a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT)],
        env=environment(broker, repository, tmp_path),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["pushed after a rollback"] == 0
    assert found["pushed in the transaction"] == 0
    assert found["pushed after the commit"] == 1
    assert found["outbox after a rollback"] == 0
    assert found["outbox before the relay"] == 1
    assert found["relay"] == "pushed 1"
    assert found["outbox after the relay"] == 0
    assert found["inline"] == "welcome, eve"
    assert found["no changes to migrate"]
    assert found["admin"] == [200, True, 302]
    assert found["admin for others"] == 302
    jobs = broker.assert_enqueued("user.welcome", queue="django-mail", count=2)
    assert [job.args for job in jobs] == [[found["ada"]], [found["bob"]]]
