"""The log records of a node that opens a data directory."""

from typing import Final

from waybill.model.operator_log import OperatorLog
from waybill.storage.journal import Journal

DAMAGES_SHOWN: Final = 10


def report_recovery(journal: Journal, operator_log: OperatorLog) -> None:
    """Log what was recovered, cut off or damaged, and messages and streams without a definition."""
    report = journal.report
    if report.is_new:
        return
    how = "the last stop was clean" if report.is_clean else "the last process crashed or was killed"
    torn = f", {report.torn_bytes} unconfirmed bytes cut off" if report.torn_bytes else ""
    operator_log.info("store recovered", f"{report.messages} messages in {report.segments} segments{torn}; {how}")
    for damage in report.damage[:DAMAGES_SHOWN]:
        operator_log.error(
            "damage in the store",
            f"{damage.name} at {damage.offset}: {damage.detail}. Everything else was recovered; "
            "`waybill store check` lists all damage, `waybill store repair` removes it",
        )
    more = len(report.damage) - DAMAGES_SHOWN
    if more > 0:
        operator_log.error("damage in the store", f"{more} more places: see `waybill store check`")
    messages, streams = journal.unclaimed()
    if messages:
        operator_log.error(
            "messages without a queue",
            f"{sum(messages.values())} messages of {len(messages)} undefined queues are kept: "
            "restore the definitions, or create queues for them with `waybill store rebuild`",
        )
    if streams:
        operator_log.error(
            "streams without a name",
            f"{len(streams)} undefined streams are kept: restore the definitions, or name them with "
            "`waybill store rebuild`",
        )
