"""Lifecycle events on the wire."""

import json

import msgspec
import pytest

from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.events import (
    BATCH_TYPE,
    EVENT_TYPES,
    JobCompleted,
    JobEnqueued,
    decode_events,
    encode_events,
    event_source,
    make_event,
)
from waybill.ojs.spec.identifiers import is_uuid7

SOURCE = "ojs://waybill/workers/1"
TIME = "2026-02-12T10:30:02.789Z"


def test_an_event_has_the_envelope_of_the_specification() -> None:
    data = JobCompleted(job_type="a.b", queue="q", duration_ms=5, attempt=1, result=msgspec.Raw(b'{"n":1}'))
    kind, body = encode_events([make_event(SOURCE, TIME, "job-1", data)])
    event = json.loads(body)
    assert kind == event["type"] == "job.completed"
    assert event["id"].startswith("evt_")
    assert is_uuid7(event["id"][4:])
    del event["id"]
    assert event == {
        "specversion": "1.0",
        "type": "job.completed",
        "source": SOURCE,
        "time": TIME,
        "subject": "job-1",
        "data": {"job_type": "a.b", "queue": "q", "duration_ms": 5, "attempt": 1, "result": {"n": 1}},
    }


def test_a_source_is_a_uri_whatever_the_name_of_the_instance() -> None:
    assert event_source("workers", 'a "b"/é') == "ojs://waybill/workers/a%20%22b%22%2F%C3%A9"


def test_many_events_are_one_array_and_both_forms_are_read() -> None:
    events = [make_event(SOURCE, TIME, str(n), JobEnqueued(job_type="a", queue="q")) for n in range(3)]
    kind, body = encode_events(events)
    assert kind == BATCH_TYPE == "ojs.events"
    assert [one.subject for one in decode_events(body)] == ["0", "1", "2"]
    assert [one.data for one in decode_events(encode_events(events[:1])[1])] == [{"job_type": "a", "queue": "q"}]


def test_ids_are_unique_and_ascend() -> None:
    ids = [make_event(SOURCE, TIME, "", JobEnqueued(job_type="a", queue="q")).id for _ in range(1000)]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize("data_type", EVENT_TYPES)
def test_every_type_of_event_has_its_required_fields(data_type: type[EventData]) -> None:
    kind = EVENT_TYPES[data_type]
    required = {
        field.name: field.type for field in msgspec.structs.fields(data_type) if field.required and field.name != "type"
    }
    assert set(required) >= REQUIRED[kind]


REQUIRED: dict[str, set[str]] = {
    "job.enqueued": {"job_type", "queue"},
    "job.scheduled": {"job_type", "queue", "scheduled_at"},
    "job.reserved": {"job_type", "queue", "unique_key", "states", "reserved_until"},
    "job.released": {"job_type", "queue"},
    "job.started": {"job_type", "queue", "worker_id", "attempt"},
    "job.completed": {"job_type", "queue", "duration_ms", "attempt"},
    "job.failed": {"job_type", "queue", "attempt", "error"},
    "job.retrying": {"job_type", "queue", "attempt", "max_attempts", "next_retry_at", "error"},
    "job.discarded": {"job_type", "queue", "total_attempts", "last_error"},
    "job.cancelled": {"job_type", "queue"},
    "job.heartbeat": {"job_type", "queue", "worker_id", "attempt", "visible_until"},
    "job.expired": {"job_type", "queue", "created_at", "expired_at", "ttl_ms"},
    "job.progress": {"job_type", "queue", "worker_id", "attempt", "progress_percent"},
    "queue.paused": {"queue"},
    "queue.resumed": {"queue"},
    "view.marked": set(),
    "worker.started": {"worker_id", "queues", "concurrency"},
    "worker.stopped": {"worker_id", "reason"},
    "worker.quiet": {"worker_id", "active_jobs"},
    "worker.heartbeat": {"worker_id", "active_jobs", "queues"},
    "workflow.started": {"workflow_id", "workflow_name", "total_steps"},
    "workflow.step_completed": {
        "workflow_id", "workflow_name", "step_id", "step_type", "duration_ms", "steps_remaining",
    },
    "workflow.created": {"workflow_id", "workflow_name", "workflow_type", "total_steps", "definition"},
    "workflow.sealed": {"workflow_id", "workflow_name", "total"},
    "workflow.pushing": {"workflow_id", "workflow_name", "pushed"},
    "workflow.abandoned": {"workflow_id", "workflow_name", "heard_at"},
    "workflow.compensated": {"workflow_id", "workflow_name", "failed_step_id", "failed_step_type", "error"},
    "workflow.step_failed": {"workflow_id", "workflow_name", "step_id", "step_type", "error"},
    "workflow.job_completed": {
        "workflow_id", "workflow_name", "step_id", "step_type", "duration_ms", "steps_remaining",
    },
    "workflow.job_failed": {"workflow_id", "workflow_name", "step_id", "step_type", "error"},
    "workflow.callback_fired": {"workflow_id", "workflow_name", "callback", "step_id", "job_id"},
    "workflow.cancelled": {"workflow_id", "workflow_name"},
    "workflow.expired": {"workflow_id", "workflow_name"},
    "workflow.retried": {"workflow_id", "workflow_name", "run"},
    "workflow.stopped": {"workflow_id", "workflow_name"},
    "workflow.revived": {"workflow_id", "workflow_name"},
    "workflow.followed": {"workflow_id", "workflow_name", "number", "run", "job_id", "ended"},
    "workflow.forgotten": {"workflow_id", "workflow_name"},
    "workflow.completed": {"workflow_id", "workflow_name", "total_steps", "duration_ms"},
    "workflow.failed": {"workflow_id", "workflow_name", "failed_step_id", "failed_step_type", "error"},
    "claim.pushed": {"copy", "by"},
    "claim.dropped": {"by", "existing_job_id"},
    "claim.copied": {"copy", "by"},
    "claim.admitted": {"copy", "worker_id"},
    "cron.registered": {"job", "now_ms"},
    "cron.toggled": {"enabled", "now_ms"},
    "cron.removed": set(),
    "cron.claimed": {"version", "until_ms", "until_key", "by", "copy"},
    "cron.told": {"keys"},
    "job.staged": {"job_type", "queue", "job"},
    "job.activated": {"job_type", "queue"},
    "job.unstaged": {"job_type", "queue"},
    "job.deleted": {"job_type", "queue"},
    "rate_limit.exceeded": {"key", "strategy", "limit", "current", "job_id"},
    "rate_limit.released": {"key", "strategy", "job_id"},
    "dead_letter.pruned": {"queue", "count"},
    "dead_letter.retried": {"queue", "job_id"},
    "dead_letter.deleted": {"queue", "job_id"},
    "rate_limit.dropped": {"key", "job_id", "job_type"},
    "rate_limit.dynamic_adjusted": {"key", "until", "reason"},
    "backpressure.warning": {"queue", "depth", "bound"},
    "backpressure.cleared": {"queue", "depth", "bound"},
    "backpressure.rejected": {"queue", "depth", "bound", "job_type"},
    "backpressure.dropped": {"queue", "job_id", "job_type"},
    "bulk.enqueue.completed": {"total", "succeeded", "failed", "atomicity"},
    "bulk.cancel.completed": {"total", "cancelled", "skipped"},
    "bulk.retry.completed": {"total", "retried", "skipped"},
    "bulk.delete.completed": {"total", "deleted", "skipped"},
    **{
        f"job.{name}": {"job_id", "job_type", "queue", "timeout_kind", "limit_seconds", "elapsed_seconds", "attempt"}
        for name in ("timeout", "stalled", "ttl_expired", "total_timeout")
    },
    "queue.created": {"queue"},
    "queue.deleted": {"queue"},
    "queue.config_updated": {"queue", "fields"},
    "queue.full": {"queue", "depth", "bound"},
    "queue.overflow": {"queue", "count"},
    "priority.changed": {"job_id", "job_type", "queue", "previous_priority", "new_priority"},
    "job.checkpointed": {"job_type", "queue", "attempt", "sequence"},
    "tenant.created": {"tenant_id"},
    "tenant.limit_exceeded": {"tenant_id", "limit", "current", "maximum"},
    "scheduling.rebalanced": {"pool", "previous_strategy", "new_strategy"},
    "webhook.subscription.created": {"subscription_id"},
    "webhook.subscription.deleted": {"subscription_id"},
    **{
        f"webhook.{name}": {"subscription_id", "delivery_id", "event_type", "attempts", "status_code"}
        for name in ("delivered", "failed", "dead")
    },
    "record.put": {"value"},
    "record.removed": set(),
    "cron.triggered": {"cron_name", "cron_expr", "job_type", "job_id", "scheduled_at"},
    "cron.skipped": {"cron_name", "cron_expr", "job_type", "reason"},
}  # fmt: skip
