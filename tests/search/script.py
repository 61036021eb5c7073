"""A script: what peers do to a node, as octets and nothing else. It stays what it is when the generator changes."""

import base64
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

READ_BYTES_MAX: Final = 256 << 10

OPEN: Final = "open"
FEED: Final = "feed"
LOSE: Final = "lose"
WAIT: Final = "wait"
STALL: Final = "stall"

AMQP091: Final = "0-9-1"
AMQP10: Final = "1.0"
AMQP010: Final = "0-10"
RAW: Final = "raw"


@dataclass(frozen=True)
class Step:
    """One thing that happens at connection `peer`.

    `open` it with the protocol `text` (RAW: without a word said), `feed` one read of `data`, `lose` it, `stall`: it
    reads no more of what it gets. `wait` is for all: `amount` seconds pass.
    """

    kind: str
    peer: int = 0
    data: bytes = b""
    text: str = ""
    amount: float = 0.0


@dataclass
class Script:
    """`is_durable`: the node has a journal. `policies` are set before, by name of the argument."""

    steps: list[Step] = field(default_factory=list)
    is_durable: bool = False
    policies: list[dict[str, object]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(len(step.data) for step in self.steps)

    def save(self, path: Path, note: str) -> None:
        lines = [
            [step.kind, step.peer, base64.b85encode(zlib.compress(step.data, 9)).decode(), step.text, step.amount]
            for step in self.steps
        ]
        value = {"note": note, "is_durable": self.is_durable, "policies": self.policies, "steps": lines}
        path.write_text(json.dumps(value, indent=0) + "\n")

    @staticmethod
    def load(path: Path) -> "Script":
        value = json.loads(path.read_text())
        steps = [
            Step(kind, peer, zlib.decompress(base64.b85decode(data)), text, amount)
            for kind, peer, data, text, amount in value["steps"]
        ]
        return Script(steps, value["is_durable"], value["policies"])
