"""When to try again."""

from dataclasses import dataclass
from random import SystemRandom
from typing import Final

_RANDOM: Final = SystemRandom()


@dataclass(frozen=True)
class ReconnectPolicy:
    """Exponential backoff: before attempt n (from 1) `min(first_delay_s * factor**(n - 1), max_delay_s)`.

    `jitter` 0.25 spreads each delay by 25 % to either side. `max_attempts` ends the connection for good after so many
    failures in a row; None never does. The defaults are those of the Open Job Spec's AMQP binding, section 11.3.
    """

    first_delay_s: float = 1.0
    factor: float = 2.0
    max_delay_s: float = 60.0
    jitter: float = 0.25
    max_attempts: int | None = None

    def delay_s(self, attempt: int) -> float:
        """How long to wait before attempt `attempt`, counted from 1."""
        # An exponent that large would overflow a float long after the cap is reached.
        delay_s = min(self.first_delay_s * self.factor ** min(attempt - 1, 64), self.max_delay_s)
        return delay_s * (1 + self.jitter * _RANDOM.uniform(-1, 1))
