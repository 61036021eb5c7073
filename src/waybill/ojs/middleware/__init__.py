"""What is wrapped around the execution of every job, one file each."""

from waybill.ojs.middleware.chain import Call, Middleware, compose
from waybill.ojs.middleware.log_context import JobLogFilter, log_context

__all__ = ["Call", "JobLogFilter", "Middleware", "compose", "log_context"]
