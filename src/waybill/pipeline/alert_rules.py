"""The rules of `waybill pipeline alerts`, read from TOML.

[[rule]]
name = "orders in time"
kind = "burn"                # the error budget of an objective burns too quickly
measure = "in_time"          # or completed
objective = 0.99
queue = "orders"             # optional, as job_type

[[rule]]
name = "fewer orders than usual"
kind = "anomaly"             # this hour differs from the same hour of previous days
measure = "enqueued"         # started, completed, failed, discarded, queue_wait_ms, run_ms
direction = "below"          # above, both
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from waybill.pipeline.named_options import OptionError, duration_ms

COUNTS: Final = ("enqueued", "started", "completed", "failed", "discarded")
TIMES: Final = ("queue_wait_ms", "run_ms")
RULES_MAX: Final = 200
_FILE_MAX: Final = 1 << 20
_DAY_S: Final = 86_400


class RulesError(RuntimeError):
    """The file of rules cannot be used; the message names the file and the rule."""


@dataclass(frozen=True, slots=True)
class Window:
    """Two windows in seconds, and the burn rate in both above which a rule fires.

    A rate of 1.0 uses exactly the error budget. The short window ends an alert soon after its cause.
    """

    long_s: int
    short_s: int
    burn: float


# Page after 2 % of a month's budget in an hour, or 5 % in six hours; a ticket after 10 % in three days.
WINDOWS: Final = (Window(3600, 300, 14.4), Window(6 * 3600, 1800, 6.0), Window(3 * _DAY_S, 6 * 3600, 1.0))


@dataclass(frozen=True, slots=True)
class BurnRule:
    """Fires if too many jobs miss an objective. `objective`: the share that must meet it, below 1."""

    name: str
    measure: Literal["in_time", "completed"]
    objective: float
    queue: str | None = None
    job_type: str | None = None
    windows: tuple[Window, ...] = WINDOWS
    least: int = 10
    """With fewer jobs in the long window, the rule does not fire."""


@dataclass(frozen=True, slots=True)
class AnomalyRule:
    """Fires if the last hour deviates by more than `threshold` robust standard deviations from previous days."""

    name: str
    measure: str
    direction: Literal["above", "below", "both"]
    queue: str | None = None
    job_type: str | None = None
    threshold: float = 6.0
    days: int = 14
    least_days: int = 5
    """With fewer previous days, the rule does not fire."""


Rule: TypeAlias = BurnRule | AnomalyRule


class _Window(msgspec.Struct, forbid_unknown_fields=True):
    long: str
    short: str
    burn: float


class _Burn(msgspec.Struct, tag="burn", tag_field="kind", forbid_unknown_fields=True):
    name: str
    objective: float
    measure: Literal["in_time", "completed"] = "in_time"
    queue: str | None = None
    job_type: str | None = None
    least: int = 10
    windows: list[_Window] | None = None

    def rule(self) -> Rule:
        _check(0 < self.objective < 1, "objective must be a share between 0 and 1, such as 0.99")
        _check(self.least >= 1, "least must be at least 1")
        windows = WINDOWS if self.windows is None else tuple(map(_window, self.windows))
        _check(bool(windows), "windows is empty")
        return BurnRule(self.name, self.measure, self.objective, self.queue, self.job_type, windows, self.least)


class _Anomaly(msgspec.Struct, tag="anomaly", tag_field="kind", forbid_unknown_fields=True):
    name: str
    measure: Literal["enqueued", "started", "completed", "failed", "discarded", "queue_wait_ms", "run_ms"]
    direction: Literal["above", "below", "both"] = "both"
    queue: str | None = None
    job_type: str | None = None
    threshold: float = 6.0
    days: int = 14
    least_days: int = 5

    def rule(self) -> Rule:
        _check(self.threshold > 0, "threshold must be greater than 0")
        _check(3 <= self.least_days <= self.days <= 90, "3 <= least_days <= days <= 90 must hold")
        return AnomalyRule(
            self.name,
            self.measure,
            self.direction,
            self.queue,
            self.job_type,
            self.threshold,
            self.days,
            self.least_days,
        )


class _File(msgspec.Struct, forbid_unknown_fields=True):
    rule: list[_Burn | _Anomaly]


def read_rules(path: Path) -> list[Rule]:
    """Read the rules of a file. Raises RulesError."""
    try:
        with path.open("rb") as file:
            text = file.read(_FILE_MAX + 1)
        _check(len(text) <= _FILE_MAX, f"the file is larger than {_FILE_MAX} bytes")
        found = msgspec.convert(tomllib.loads(text.decode()), _File).rule
    except (OSError, ValueError, RecursionError) as problem:
        raise RulesError(f"{path}: {problem}") from None
    rules: list[Rule] = []
    for given in found:
        try:
            rules.append(given.rule())
        except ValueError as problem:
            raise RulesError(f"{path}: rule {given.name!r}: {problem}") from None
    names = [rule.name for rule in rules]
    if not names or len(set(names)) < len(names) or len(names) > RULES_MAX:
        raise RulesError(f"{path}: 1 to {RULES_MAX} rules with different names are needed")
    return rules


def _window(given: _Window) -> Window:
    try:
        long_s, short_s = (duration_ms("windows", text) // 1000 for text in (given.long, given.short))
    except OptionError as problem:
        raise ValueError(str(problem)) from None
    _check(
        60 <= short_s < long_s <= 30 * _DAY_S, "a window must be from 1m to 30d, and short must be shorter than long"
    )
    _check(given.burn > 0, "burn must be greater than 0")
    return Window(long_s, short_s, given.burn)


def _check(condition: bool, message: str) -> None:  # noqa: FBT001 - as an assertion
    if not condition:
        raise ValueError(message)
