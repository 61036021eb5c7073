"""A node on a simulated disk, with little memory: what waits in its queues is soon on the disk only."""

from random import Random
from typing import Final

from tests.engine.amqp091.peer import Cut, NodeBench
from waybill.node.node import Node, NodeOptions
from waybill.testing.simulated_disk import SimulatedDisk

LITTLE_MEMORY_BYTES: Final = 64 << 10


class DiskBench(NodeBench):
    """`restart` begins a new life of the node on what the disk has; peers of the old one are cut off."""

    def __init__(self, cut: Cut = Cut.WHOLE, seed: int = 0, *, memory_limit_bytes: int = LITTLE_MEMORY_BYTES) -> None:
        super().__init__(cut, seed)
        self.disk = SimulatedDisk(Random(seed))
        self.memory_limit_bytes = memory_limit_bytes
        self._open()

    def _open(self) -> None:
        options = NodeOptions("bench", "0", self.random.randbytes, self.memory_limit_bytes)
        self.node = Node.open(self.disk, options, self.now)

    def settle(self) -> None:
        self.flush()
        while not self.is_stuck and (commit := self.node.begin_commit()) is not None:
            commit.execute()
            self.node.end_commit(commit)
            self.flush()

    def restart(self, how: str) -> None:
        """`how`: "stop" in order, "kill" the process, or "power" loss."""
        if how == "stop":
            for wire in self.wires:
                wire.cut()
            self.settle()
            self.node.close()
            self.disk.kill()
        elif how == "kill":
            self.disk.kill()
        else:
            self.disk.lose_power()
        self.wires = []
        self._open()

    @property
    def memory_bytes(self) -> int:
        """Message content in memory, as the node counts it."""
        return int(self.node.runtime.memory_bytes)
