"""What an operator is told when a node takes over a data directory."""

from typing import Final

from waybill.model.operator_log import OperatorLog
from waybill.storage.journal import Journal

DAMAGES_SHOWN: Final = 10


def report_recovery(journal: Journal, operator_log: OperatorLog) -> None:
    """Say what was recovered, what was cut off, what is damaged, and what is kept though nobody knows it."""
    report = journal.report
    if report.is_new:
        return
    how = "the last stop was in order" if report.is_clean else "the last process did not stop in order"
    torn = f", {report.torn_bytes} bytes cut off that nobody was told of" if report.torn_bytes else ""
    operator_log.info("store recovered", f"{report.messages} messages in {report.segments} segments{torn}; {how}")
    for damage in report.damage[:DAMAGES_SHOWN]:
        operator_log.error(
            "damage in the store",
            f"{damage.name} at {damage.offset}: {damage.detail}. What can be read is there; "
            "`waybill store check` shows it all, `repair` takes it out",
        )
    more = len(report.damage) - DAMAGES_SHOWN
    if more > 0:
        operator_log.error("damage in the store", f"{more} more places: see `waybill store check`")
    messages, streams = journal.unclaimed()
    if messages:
        operator_log.error(
            "messages without a queue",
            f"{sum(messages.values())} messages of {len(messages)} queues that are not defined are kept: "
            "restore the definitions, or give them queues with `waybill store rebuild`",
        )
    if streams:
        operator_log.error(
            "streams without a name",
            f"{len(streams)} streams that are not defined are kept: restore the definitions, or name them with "
            "`waybill store rebuild`",
        )
