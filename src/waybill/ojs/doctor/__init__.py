"""What is unsafe about a broker and the queues of jobs on it, with the cause and the way out."""

from waybill.ojs.doctor.diagnosis import Diagnosis, Severity
from waybill.ojs.doctor.examination import Examination

__all__ = ["Diagnosis", "Examination", "Severity"]
