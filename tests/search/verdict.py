"""Runs a script and says what is wrong with what the node did.

| promise | the check |
|---|---|
| a read does not keep others waiting | CPU of each stretch, from a read or a timer until the loop is free again |
| memory is counted | what the process holds at the end of each step, against what the node counts |
| a bystander is served | each publishes, is confirmed and gets the message, after each step; one amid a long read |
| nothing escapes | no exception, no error in the operator's log, no atomic section left open |
| errors are the protocol's | all output can be read; closes have codes of their protocol, and never an internal error |
| a peer leaves nothing behind | when all peers are gone, the node knows the bystanders only |
"""

import gc
import time
import traceback
from dataclasses import dataclass, field
from typing import Final

import waybill.model.queue
from tests.search.bystander import BYSTANDERS, Bystanders
from tests.search.machine import PREPARED, Machine, memory_in_use
from tests.search.script import Script
from waybill.wire.amqp091.frames import method_frame

IS_COMPILED: Final = not waybill.model.queue.__file__.endswith(".py")

STRETCH_S: Final = 0.05 if IS_COMPILED else 0.25
"""CPU between two returns to the loop. What is interpreted takes about five times as long as what is compiled."""
REFERENCE_LOOP_S: Final = 0.011
"""What `_loop` takes on the machine that the bound was set on, nothing else running."""
WAIT_STRETCHES: Final = 4
"""A bystander who comes while a long read is worked off is served within so many times the bound: 200 ms compiled."""
TRIES: Final = 10
PAUSE_S: Final = 0.1
"""Between tries, and longer each time: the noise of a shared machine lasts longer than most scripts."""

UNCOUNTED_BYTES: Final = 12 << 20
UNCOUNTED_FACTOR: Final = 100
"""Octets in memory by octet sent, besides what the node counts: a queue of a declaration of 30 octets takes 3,000."""
UNCOUNTED_BYTES_MAX: Final = 160 << 20


PIECE_BYTES: Final = 40
CHECKED_PIECES: Final = 10
"""Where a session comes octet by octet the bystanders are served after every tenth only."""


@dataclass
class Verdict:
    """`fault` is empty, or says what is wrong; `kind` is one word for it. `features`: what was new to see in it."""

    kind: str = ""
    fault: str = ""
    longest_s: float = 0.0
    longest_step: int = -1
    whole_s: float = 0.0
    uncounted_bytes: int = 0
    features: set[object] = field(default_factory=set)


def _loop() -> float:
    began = time.process_time()
    total = 0
    for number in range(200_000):
        total += number & 7
    return time.process_time() - began


def slowness() -> float:
    """How much slower this machine is just now than the one that the bounds are for; at least 1."""
    return max(1.0, min(_loop() for _ in range(3)) / REFERENCE_LOOP_S)


def run(script: Script) -> Verdict:
    """Once. Time is what it is: see `judge`."""
    verdict = Verdict()
    was_enabled = gc.isenabled()
    gc.disable()
    machine: Machine | None = None
    began = time.process_time()
    try:
        machine = Machine(script)
        _play(machine, script, verdict)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        verdict.kind = verdict.kind or _kind(error)
        verdict.fault = verdict.fault or "".join(traceback.format_exception(error, limit=-6))
    finally:
        if was_enabled:
            gc.enable()
    verdict.whole_s = time.process_time() - began
    if machine is not None:
        verdict.longest_s = max(machine.longest_s, machine.longest_wait_s / WAIT_STRETCHES)
        verdict.longest_step = machine.longest_step
    return verdict


def _kind(error: Exception) -> str:
    return type(error).__name__


def _play(machine: Machine, script: Script, verdict: Verdict) -> None:
    bystanders = Bystanders(machine)
    machine.feed(bystanders.old, b"".join(method_frame(1, method) for method in PREPARED))
    machine.longest_s = 0.0
    before = memory_in_use() - machine.counted_bytes
    sent = 0
    for number, step in enumerate(script.steps):
        machine.take(number, step)
        sent += len(step.data)
        for wire in machine.peers.values():
            verdict.features.update(wire.answers.seen)
        if machine.store.messages.is_in_atomic_section:
            raise AssertionError("an atomic section is left open")
        if machine.log.errors:
            raise AssertionError(f"an error is reported: {machine.log.errors[0]}")
        kept = sum(wire.kept_bytes for wire in machine.peers.values())
        grown = memory_in_use() - machine.counted_bytes - before - kept
        verdict.uncounted_bytes = max(verdict.uncounted_bytes, grown)
        if grown > min(UNCOUNTED_BYTES + UNCOUNTED_FACTOR * sent, UNCOUNTED_BYTES_MAX):
            verdict.kind = "memory"
            verdict.fault = f"after step {number} and {sent} octets {grown >> 20} MiB are held that nobody counts"
            return
        is_piece = len(step.data) <= PIECE_BYTES and number % CHECKED_PIECES
        if not (machine.node.alarm or is_piece):
            machine.step_number = number
            bystanders.check(f"after step {number}")
    for peer in list(machine.peers):
        machine.lose(peer)
    machine.begin_stretch()
    machine.settle()
    if len(machine.node.connections) != BYSTANDERS:
        raise AssertionError(f"{len(machine.node.connections) - BYSTANDERS} connections stay when all are gone")
    if not machine.node.alarm:
        bystanders.check("when the others are gone")


def judge(script: Script) -> Verdict:
    """Run a script; what takes too long must do so each time, over seconds, on a machine as fast as it is just then."""
    verdict = run(script)
    tries = 1
    while verdict.fault == "" and verdict.longest_s > STRETCH_S and verdict.longest_s > STRETCH_S * slowness():
        if tries == TRIES:
            verdict.kind = "cpu"
            verdict.fault = (
                f"step {verdict.longest_step} takes {verdict.longest_s * 1000:.0f} ms before others are served"
            )
            break
        time.sleep(PAUSE_S * tries)
        gc.collect()
        again = run(script)
        tries += 1
        if again.fault or again.longest_s < verdict.longest_s:
            verdict = again
    return verdict
