"""The partition of the event stream that an event belongs to.

Events of single jobs are spread over all partitions by a hash of the job's id, so those of one job are in one
partition, in order. Everything whose meaning depends on the order of events about different things is in partition 0:
cron jobs, workflows with all of their jobs, claims, records, queues and workers.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from waybill.ojs.spec.identifiers import may_be_derived

HEADER: Final = "ojs-partition"
"""The header by which the broker routes a message of events to its partition; without it, to partition 0."""
_MEMBER_AT: Final = slice(28, 30)
_MEMBER: Final = "01"
"""Jobs that a client streams into a workflow. One in 256 other ids looks so, too."""


def partition_of_job(job_id: str, count: int) -> int:
    """Return the partition of a job's events, of `count` partitions."""
    if may_be_derived(job_id) or job_id[_MEMBER_AT] == _MEMBER:
        return 0
    return crc32(job_id.encode(errors="surrogatepass")) % count


def partition_of(event_type: str, subject: str, count: int) -> int:
    """Return the partition of an event, of `count` partitions."""
    return partition_of_job(subject, count) if event_type.startswith("job.") else 0
