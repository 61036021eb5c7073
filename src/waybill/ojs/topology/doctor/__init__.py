"""What is unsafe about a broker and the queues of jobs on it, with the cause and the remedy."""

from waybill.ojs.topology.doctor.diagnosis import Diagnosis, Severity
from waybill.ojs.topology.doctor.examination import Examination

__all__ = ["Diagnosis", "Examination", "Severity"]
