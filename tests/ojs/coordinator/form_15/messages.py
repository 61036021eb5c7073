"""What the databases in this directory were made of, by Waybill as it was before it had migrations.

`sqlite.sql` is Python's dump of a SQLite file, `postgresql.sql` what `pg_dump --inserts --no-owner` writes.
"""

from waybill.ojs.spec.events import ReceivedEvent


def event(kind: str, job_id: str, second: int, **data: object) -> ReceivedEvent:
    time = f"2026-01-01T00:00:{second:02}.000Z"
    told = {"job_type": f"type.{job_id[-1]}", "queue": "mail", **data}
    return ReceivedEvent(f"evt_{job_id}_{kind}_{second}", kind, "/test", time, job_id, told)


IDS = [f"019b7680-{number:04x}-7000-8000-00000000000{number}" for number in range(8)]
ERROR = {"code": "HANDLER_ERROR", "type": "ValueError", "message": 'no \\ "way" {1}, ö'}


def messages() -> list[tuple[int, list[ReceivedEvent]]]:
    """Jobs in all states, one of them with an id that tells no time, and one that is unique."""
    job = {"id": IDS[0], "type": "type.0", "queue": "mail", "args": [{"to": 'a "b" \\ {c}, ö'}], "meta": {}}
    found = [event("job.enqueued", job_id, 1) for job_id in IDS[1:]]
    found += [
        event("job.reserved", IDS[0], 0, unique_key="k\\1", states=["pending", "available"]),
        event("job.enqueued", IDS[0], 1, job=job, unique_key="k\\1"),
        event("job.enqueued", IDS[1], 2, scheduled_at="2027-01-01T00:00:00Z"),
        *(event("job.started", job_id, 3, worker_id="w", attempt=1) for job_id in IDS[2:7]),
        event("job.progress", IDS[2], 4, attempt=1, progress_percent=50, checkpoint={"state": [1], "sequence": 1}),
        event("job.heartbeat", IDS[2], 5, attempt=1, visible_until="2026-01-01T00:01:00Z", visibility_ms=9000),
        event("job.failed", IDS[3], 6, attempt=1, error=ERROR),
        event("job.retrying", IDS[3], 6, attempt=1, max_attempts=3, next_retry_at="2026-01-01T00:00:09Z"),
        event("job.discarded", IDS[4], 7, total_attempts=1, last_error=ERROR, dead_letter=True),
        event("job.completed", IDS[5], 8, attempt=1, result={"answer": 42}),
        event("job.cancelled", IDS[6], 9),
        event("job.enqueued", "zz-of-another-program", 10),
        event("job.started", "zz-of-another-program", 11, worker_id="w", attempt=1),
    ]
    return [(offset, [one]) for offset, one in enumerate(found)]
