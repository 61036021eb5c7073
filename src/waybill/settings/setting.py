"""One setting, and its names in the file, in the environment and as an option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from waybill.settings.kinds import Kind

PREFIX: Final = "WAYBILL_"


@dataclass(frozen=True)
class Setting:
    """A setting. `name` is its name in the file, with its table: `limits.frame_max`.

    If `default` is None, `help` says what applies. `reloads`: SIGHUP changes it while the broker runs.
    """

    name: str
    kind: Kind
    default: object
    help: str
    reloads: bool = False

    @property
    def table(self) -> str:
        """Its table in the file; empty at the top level."""
        return self.name.rpartition(".")[0]

    @property
    def key(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """`limits.frame_max` is `WAYBILL_LIMITS_FRAME_MAX`."""
        return PREFIX + self.name.replace(".", "_").upper()

    @property
    def parameter(self) -> str:
        """Its name as an argument of a command: `limits_frame_max`."""
        return self.name.replace(".", "_")

    @property
    def option(self) -> str:
        """`limits.frame_max` is `--limits-frame-max`."""
        return "--" + self.parameter.replace("_", "-")
