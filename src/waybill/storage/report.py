"""What recovery and the offline check found."""

from dataclasses import dataclass, field
from typing import Final

MISSING: Final = "the file is missing"


def cut_short(size: int, durable_size: int) -> str:
    """The report of a file that has lost its end."""
    return f"the file is truncated: {size} of at least {durable_size} bytes are left"


@dataclass(frozen=True)
class Damage:
    """Synced bytes that the disk has lost or changed."""

    name: str
    offset: int
    detail: str


@dataclass
class RecoveryReport:
    """`torn_bytes` were never confirmed: a crash interrupted their write. `damage`: synced data that is lost."""

    is_new: bool = False
    is_clean: bool = False
    segments: int = 0
    messages: int = 0
    torn_bytes: int = 0
    damage: list[Damage] = field(default_factory=list)

    def damaged(self, name: str, offset: int, detail: str) -> None:
        """Record a damaged place."""
        self.damage.append(Damage(name, int(offset), detail))
