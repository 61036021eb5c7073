"""Drops the second message of a job that is in its queue twice, as far as one worker knows."""

from __future__ import annotations

from collections.abc import Iterable

from waybill.ojs.spec.headers import is_repeated
from waybill.ojs.worker.execution import Execution
from waybill.ojs.worker.settlement import Settlement


def drop_copy(execution: Execution, active: Iterable[Execution], settlement: Settlement) -> bool:
    """Drop a job whose message says that it may be the second, if its attempt runs here or has ended here."""
    if not is_repeated(execution.delivery.encoded_properties):
        return False
    if not settlement.has_ended(execution) and all(one.key != execution.key for one in active):
        return False
    settlement.refused(execution.queue, execution.delivery)
    return True
