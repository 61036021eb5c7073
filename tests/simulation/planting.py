"""Plants bugs into the store, from outside, for as long as a block lasts."""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import waybill.node.passwords
import waybill.storage.log
import waybill.storage.message_log
from tests.simulation.front import Plants

IS_COMPILED = not waybill.storage.log.__file__.endswith(".py")


def fits(data: bytes, index: int, length: int) -> bool:
    """In place of the check of a record's digest."""
    del data, index, length
    return True


def quick_hash(password: bytes, salt: bytes) -> bytes:
    """In place of a password hash that is slow on purpose: every life of a node would spend 20 ms on it."""
    return hashlib.sha256(salt + password).digest()


@contextmanager
def planted(name: str | None) -> Iterator[Plants]:
    """What the simulation is to be given; `no_checksum` is patched in, which only interpreted code lets us do."""
    plants = Plants.only(name) if name else Plants()
    with ExitStack() as stack:
        if not IS_COMPILED:
            stack.enter_context(patch.object(waybill.node.passwords, "stretch", quick_hash))
            stack.enter_context(patch.object(waybill.node.passwords, "ITERATIONS", 1))
        if plants.no_checksum:
            for module in (waybill.storage.log, waybill.storage.message_log):
                stack.enter_context(patch.object(module, "record_is_whole", fits))
        yield plants
