"""Finds what is unsafe about a broker and its job queues, with the cause and the remedy."""

from waybill.ojs.topology.doctor.diagnosis import Diagnosis, Severity
from waybill.ojs.topology.doctor.examination import Examination

__all__ = ["Diagnosis", "Examination", "Severity"]
