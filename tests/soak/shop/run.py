"""Opens the shop, kills what chance picks while customers buy, and checks the books."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.soak.shop.check import WrongEndError, check, has_begun, unfinished
from tests.soak.shop.customers import END_SECONDS, Report
from tests.soak.shop.house import ShopHouse


@dataclass
class ShopFigures:
    """What came of a run."""

    kills: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    ends: str = ""

    def __str__(self) -> str:
        kills = ", ".join(f"{count} of {what}" for what, count in self.kills.items())
        return f"{self.ends}; kills: {kills}; {self.seconds:.0f} s"


def run_shop(
    house: ShopHouse,
    directory: Path,
    kills: int,
    pause: tuple[float, float],
    chance: random.Random,
    on_step: Callable[[str], None],
) -> ShopFigures:
    """Kill so often, with so many seconds between. Raises WrongEndError."""
    began = time.monotonic()
    house.open()
    report = directory / "report.json"
    customers = house.admit_customers(report)
    while not has_begun(house.ledger):
        house.restart_the_dead()
        time.sleep(0.2)
    time.sleep(house.settle_seconds)
    for _ in range(kills):
        time.sleep(chance.uniform(*pause))
        what = house.kill_something()
        house.restart_the_dead()
        on_step(f"killed a {what}, {sum(house.kills.values())} of {kills}")
        if customers.poll() is not None:
            raise WrongEndError(f"the customers have left: see {directory}/log")
    assert customers.stdin is not None
    customers.stdin.close()
    on_step("waiting for the ends")
    deadline = time.monotonic() + 2 * END_SECONDS
    while customers.poll() is None:
        house.restart_the_dead()
        if time.monotonic() > deadline:
            raise WrongEndError(f"the customers wait for ever: see {directory}/log")
        time.sleep(0.2)
    if customers.returncode:
        raise WrongEndError(f"the customers have failed: see {directory}/log")
    while unfinished(house.store) and time.monotonic() < deadline:
        # Nobody waits for the mails of invoices.
        time.sleep(0.2)
    found = msgspec.json.decode(report.read_bytes(), type=Report)
    return ShopFigures(dict(house.kills), time.monotonic() - began, check(found, house.ledger, house.store))
