"""The processes of the shop: its workers and a coordinator as users start them, and its customers."""

import random
import subprocess
from pathlib import Path
from typing import Final

from tests.soak.jobs.house import House

QUEUES: Final = ("mail", "orders", "images", "partners", "quotes", "reports")


class ShopHouse(House):
    """A shop that can be killed piece by piece; its customers are spared."""

    def __init__(self, broker_name: str, directory: Path, workers: int, chance: random.Random) -> None:
        super().__init__(broker_name, directory, workers, chance)
        self.ledger = directory / "shop.sqlite"
        self._customers: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start everything but the customers."""
        self.environment = {"WAYBILL_URL": self.uri, "SHOP_LEDGER": str(self.ledger)}
        self.start()

    def admit_customers(self, report: Path) -> subprocess.Popen[bytes]:
        """Start the customers: they buy until their input ends, and write what they have got to `report`."""
        self._customers = self._spawn(["-m", "tests.soak.shop.customers", str(report)], stdin=subprocess.PIPE)
        return self._customers

    def close(self) -> None:
        if self._customers is not None:
            self._customers.kill()
            self._customers.wait()
            if self._customers.stdin is not None:
                self._customers.stdin.close()
        super().close()

    def _start_worker(self, index: int) -> None:
        self._workers[index] = self._spawn(["-m", "waybill", "worker", "examples.shop.jobs:jobs", "--processes", "1"])

    def _start_coordinator(self) -> None:
        self._coordinator = self._spawn(["-m", "waybill", "coordinator", *QUEUES, "--database", str(self.store)])
