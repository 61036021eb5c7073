"""When to reconnect."""

from dataclasses import dataclass
from random import SystemRandom
from typing import Final

from waybill.client.ranges import check_number, check_whole

YEAR_S: Final = 31_536_000.0
_RANDOM: Final = SystemRandom()


@dataclass(frozen=True)
class ReconnectPolicy:
    """Exponential backoff: before attempt n (from 1) `min(first_delay_s * factor**(n - 1), max_delay_s)`.

    `jitter` 0.25 varies each delay by up to 25 % in either direction. After `max_attempts` failures in a row, the
    connection is closed: with 0 immediately, with None never. The defaults are those of the Open Job Spec's AMQP
    binding, section 11.3.
    """

    first_delay_s: float = 1.0
    factor: float = 2.0
    max_delay_s: float = 60.0
    jitter: float = 0.25
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a number out of range."""
        check_number("first_delay_s", self.first_delay_s, 0, YEAR_S)
        check_number("factor", self.factor, 1, 1000)
        check_number("max_delay_s", self.max_delay_s, 0, YEAR_S)
        check_number("jitter", self.jitter, 0, 1)
        check_whole("max_attempts", self.max_attempts, 0, 2**31 - 1)

    def delay_s(self, attempt: int) -> float:
        """How long to wait before attempt `attempt`, counted from 1."""
        # The cap is reached long before; a larger exponent would overflow a float.
        delay_s = min(self.first_delay_s * self.factor ** min(attempt - 1, 64), self.max_delay_s)
        return delay_s * (1 + self.jitter * _RANDOM.uniform(-1, 1))
