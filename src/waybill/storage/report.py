"""What recovery and the offline check found."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Damage:
    """Bytes that the disk had promised to keep and has not kept."""

    name: str
    offset: int
    detail: str


@dataclass
class RecoveryReport:
    """`torn_bytes` were never confirmed to anybody: they are what a crash interrupts. `damage` is another matter."""

    is_clean: bool = False
    segments: int = 0
    messages: int = 0
    torn_bytes: int = 0
    damage: list[Damage] = field(default_factory=list)
