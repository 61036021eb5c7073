"""Log records as JSON, one per line, with the fields of ojs-logging section 5.

    handler = logging.StreamHandler()
    handler.setFormatter(JsonLogFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO)

Records of handlers, and of the libraries that they call, have the job and its trace.
"""

from __future__ import annotations

import logging
import traceback
from typing import Final

import msgspec

from waybill.ojs.job_context import current
from waybill.ojs.spec.log_text import shortened
from waybill.ojs.spec.timestamps import format_unix_time

# The severities of OpenTelemetry's log data model, by minimum level.
_SEVERITIES: Final = (
    (logging.CRITICAL, "FATAL", 21),
    (logging.ERROR, "ERROR", 17),
    (logging.WARNING, "WARN", 13),
    (logging.INFO, "INFO", 9),
    (logging.DEBUG, "DEBUG", 5),
    (0, "TRACE", 1),
)
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message", "asctime", "category", "component", "ojs", "attributes", "job_error", "job_id", "job_type",
    "job_attempt", "color_message",
}  # fmt: skip


class JsonLogFormatter(logging.Formatter):
    """Formats a record as a JSON object; values of `extra` are in `attributes`."""

    def __init__(self, component: str = "worker") -> None:
        """`component` is "worker", "client" or "server", unless a record sets it."""
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without a line break."""
        severity, number = next((text, number) for level, text, number in _SEVERITIES if record.levelno >= level)
        fields: dict[str, object] = {
            "timestamp": format_unix_time(record.created),
            "severity": severity,
            "severity_number": number,
            "message": shortened(record.getMessage()),
            "component": getattr(record, "component", self._component),
            "logger": record.name,
        }
        if hasattr(record, "category"):
            fields["category"] = record.category
        job = current.get()
        if hasattr(record, "ojs"):
            fields["ojs"] = record.ojs
        elif job is not None:
            fields["ojs"] = {
                "job_id": job.id,
                "job_type": job.type,
                "queue": job.queue,
                "attempt": job.attempt,
                "worker_id": job.worker_id,
            }
        if job is not None and (parts := (job.traceparent or "").split("-"))[1:]:
            fields["trace"] = {"trace_id": parts[1], "span_id": parts[2]}
        error = record.exc_info[1] if record.exc_info else getattr(record, "job_error", None)
        if isinstance(error, BaseException):
            fields["error"] = {
                "type": type(error).__name__,
                "message": shortened(str(error)),
                "backtrace": shortened("".join(traceback.format_tb(error.__traceback__))),
            }
        attributes = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        attributes.update(getattr(record, "attributes", {}))
        if attributes:
            fields["attributes"] = attributes
        return msgspec.json.encode(fields, enc_hook=str).decode()
