"""Checkpoints: what an attempt leaves for the next one (ojs-durable-execution sections 4 to 6)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.ojs.spec.nesting import MAX_CARRIED_NESTING, is_nested_deeper
from waybill.ojs.spec.timestamps import format_timestamp

MAX_CHECKPOINT_BYTES: Final = 1024 * 1024
MAX_SEQUENCE: Final = 2**53 - 1


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A JSON value with its number, counted over all attempts of the job from 1, and the time it was made."""

    state: object
    sequence: int = 0
    created_at: str | None = None


def make_checkpoint(state: object, previous: Checkpoint | None, sequence: int | None = None) -> Checkpoint:
    """Return the checkpoint after `previous`, with the next number unless `sequence` is given.

    Raises TypeError if it is not JSON, ValueError if it is too large.
    """
    encoded = msgspec.json.encode(state)
    if len(encoded) > MAX_CHECKPOINT_BYTES:
        raise ValueError(f"a checkpoint of {len(encoded)} bytes is too large: {MAX_CHECKPOINT_BYTES} are allowed")
    if is_nested_deeper(encoded, MAX_CARRIED_NESTING):
        raise ValueError(f"a checkpoint is nested deeper than {MAX_CARRIED_NESTING} levels")
    if sequence is None:
        sequence = 1 if previous is None else previous.sequence + 1
    # A copy: what the handler does to its own objects afterwards is not part of it.
    return Checkpoint(msgspec.json.decode(encoded), min(sequence, MAX_SEQUENCE), format_timestamp(datetime.now(UTC)))


def read_checkpoint(value: object) -> Checkpoint | None:
    """Return the checkpoint in an envelope or an event; None if it is invalid."""
    if value is None:
        return None
    try:
        return msgspec.convert(value, Checkpoint)
    except msgspec.ValidationError:
        return None
