"""What recovery and the offline check found."""

from dataclasses import dataclass, field
from typing import Final

MISSING: Final = "the file is missing"


def cut_short(size: int, durable_size: int) -> str:
    """What is said of a file that has lost its end."""
    return f"the file is cut: {size} of at least {durable_size} bytes are left"


@dataclass(frozen=True)
class Damage:
    """Bytes that the disk had promised to keep and has not kept."""

    name: str
    offset: int
    detail: str


@dataclass
class RecoveryReport:
    """`torn_bytes` were never confirmed to anybody: they are what a crash interrupts. `damage` is another matter."""

    is_new: bool = False
    is_clean: bool = False
    segments: int = 0
    messages: int = 0
    torn_bytes: int = 0
    damage: list[Damage] = field(default_factory=list)

    def damaged(self, name: str, offset: int, detail: str) -> None:
        """Note a damaged place."""
        self.damage.append(Damage(name, int(offset), detail))
