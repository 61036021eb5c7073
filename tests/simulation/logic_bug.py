"""A bug of the broker's logic that can be planted, and the troubles that bring it to light."""

from dataclasses import dataclass
from typing import Any, Final

from tests.simulation.profile import Troubles

PRESENT: Final = "a confirmed message is present until settled or removed by a policy"
CALM: Final = Troubles()
CRASHES: Final = Troubles(kills=2, power_losses=2)
NETWORK: Final = Troubles(resets=8)
READ_ERRORS: Final = Troubles(read_errors=25)
READS: Final = "unread_dropped"
STORED_ONCE: Final = "a message is stored once over a resumed link or session"


@dataclass(frozen=True)
class LogicBug:
    """`wrong` takes the place of `name` in `owner`, and breaks `promise`. `theme`: a queue that is always there.

    What is wrong with 1.0 or 0-10 is looked for in runs whose clients speak it; 0-10 is spoken in no other.
    """

    owner: Any
    name: str
    wrong: object
    promise: str
    troubles: Troubles
    theme: str | None = None

    @property
    def is_of_amqp10(self) -> bool:
        return ".amqp10." in self._module

    @property
    def is_of_amqp010(self) -> bool:
        return ".amqp010." in self._module or "branch" in self._module

    @property
    def _module(self) -> str:
        return str(getattr(self.owner, "__module__", getattr(self.owner, "__name__", "")))
