"""Attacks at full size, each against a process of its own: what that held, and how long others waited."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.security.siege import RSS_MAX_KB
from waybill.transport.descriptors import raise_descriptor_limit

Attack = tuple[Callable[[Any, int], None], int, Callable[[Path], Any]]
"""What is done, how often, and what makes the siege."""


def attack_in_turn(attacks: Iterable[Attack], words: list[str]) -> int:
    """Do all attacks, or those that `words` name, and print a line for each; the number of those that failed.

    A word is a name, or a name and the number to do it with (NAME=COUNT); `--from NAME` means this and what follows.
    """
    raise_descriptor_limit()
    # The bystander must not wait for the attackers of its own process.
    sys.setswitchinterval(0.0002)
    attacks = list(attacks)
    if words[:1] == ["--from"]:
        names = [attack.__name__ for attack, _, _ in attacks]
        words = names[names.index(words[1]) :]
    chosen = {name: number for name, _, number in (word.partition("=") for word in words)}
    failed = 0
    for attack, count, besieged in attacks:
        if not chosen or attack.__name__ in chosen:
            failed += not _attack(attack, int(chosen.get(attack.__name__) or count), besieged)
    return failed


def _attack(attack: Callable[[Any, int], None], count: int, besieged: Callable[[Path], Any]) -> bool:
    fault = ""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, besieged(Path(directory)) as siege:
        try:
            siege.attack(attack, count)
            siege.check()
        except (AssertionError, OSError) as error:
            fault = str(error)[-1500:] or type(error).__name__
        bystander = siege.bystander
        waited = f"{bystander.longest_ms} ms, {bystander.longest_cpu_ms} ms of CPU"
        shown = f"{siege.most_kb // 1000} MB of {RSS_MAX_KB // 1000}, the bystander waited {waited}"
        took = f"{bystander.rounds} rounds, {time.monotonic() - began:.0f} s"
    print(f"{siege.name}: {attack.__name__} {count}: {shown} ({took})  {fault or 'ok'}", flush=True)
    return not fault
