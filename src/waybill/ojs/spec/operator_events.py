"""What operators do, and what servers decide, as events of extensions of the Open Job Spec."""

from __future__ import annotations

from typing import Final

from waybill.ojs.spec.event_data import EventData


class QueueChanged(EventData, frozen=True, kw_only=True):
    """What is told of a queue, which is the subject (ojs-queue-config section 10.1)."""

    queue: str


class QueueCreated(QueueChanged, frozen=True, kw_only=True):
    """A queue was created by request, not by its first job."""


class QueueDeleted(QueueChanged, frozen=True, kw_only=True):
    """A queue was deleted."""


class QueueConfigUpdated(QueueChanged, frozen=True, kw_only=True):
    """The configuration of a queue has changed: `fields` are those that were given."""

    fields: list[str]


class QueueFilled(QueueChanged, frozen=True, kw_only=True):
    """A queue has reached its bound; again only after it had room."""

    depth: int
    bound: int


class QueueOverflow(QueueChanged, frozen=True, kw_only=True):
    """The oldest jobs of a full queue were discarded; each has its own `backpressure.dropped`."""

    count: int


class PriorityChanged(EventData, frozen=True, kw_only=True):
    """The priority of a waiting job, the subject, has changed (ojs-priority section 11.1)."""

    job_id: str
    job_type: str
    queue: str
    previous_priority: int
    new_priority: int


class JobCheckpointed(EventData, frozen=True, kw_only=True):
    """A worker has stored a checkpoint of a job over HTTP (ojs-durable-execution, DUR-R003)."""

    job_type: str
    queue: str
    attempt: int
    sequence: int


class TenantCreated(EventData, frozen=True, kw_only=True):
    """A tenant, the subject, is configured for the first time (ojs-multi-tenancy section 11.1)."""

    tenant_id: str


class TenantLimitExceeded(EventData, frozen=True, kw_only=True):
    """A push was refused because of a limit of a tenant; at most one event a second for each tenant and server."""

    tenant_id: str
    limit: str
    current: int
    maximum: int


class SchedulingRebalanced(EventData, frozen=True, kw_only=True):
    """The strategy or the weights of a pool, the subject, have changed (ojs-fair-scheduling section 11.1)."""

    pool: str
    previous_strategy: str
    new_strategy: str


class SubscriptionChanged(EventData, frozen=True, kw_only=True):
    """What is told of a subscription to webhooks, which is the subject (ojs-webhooks section 11.1)."""

    subscription_id: str


class SubscriptionCreated(SubscriptionChanged, frozen=True, kw_only=True):
    """A subscription was created."""


class SubscriptionDeleted(SubscriptionChanged, frozen=True, kw_only=True):
    """A subscription was deleted."""


class WebhookOutcome(SubscriptionChanged, frozen=True, kw_only=True):
    """The outcome of an attempt to deliver an event. Webhooks are not told of it, or each would cause another."""

    delivery_id: str
    event_type: str
    attempts: int
    status_code: int
    error: str | None = None


class WebhookDelivered(WebhookOutcome, frozen=True, kw_only=True):
    """The endpoint has taken an event."""


class WebhookFailed(WebhookOutcome, frozen=True, kw_only=True):
    """The endpoint has not taken an event, and gets it again later."""


class WebhookDead(WebhookOutcome, frozen=True, kw_only=True):
    """The endpoint has not taken an event, and does not get it again."""


OPERATOR_EVENT_TYPES: Final[dict[type[EventData], str]] = {
    QueueCreated: "queue.created",
    QueueDeleted: "queue.deleted",
    QueueConfigUpdated: "queue.config_updated",
    QueueFilled: "queue.full",
    QueueOverflow: "queue.overflow",
    PriorityChanged: "priority.changed",
    JobCheckpointed: "job.checkpointed",
    TenantCreated: "tenant.created",
    TenantLimitExceeded: "tenant.limit_exceeded",
    SchedulingRebalanced: "scheduling.rebalanced",
    SubscriptionCreated: "webhook.subscription.created",
    SubscriptionDeleted: "webhook.subscription.deleted",
    WebhookDelivered: "webhook.delivered",
    WebhookFailed: "webhook.failed",
    WebhookDead: "webhook.dead",
}
WEBHOOK_OUTCOMES: Final = frozenset({"webhook.delivered", "webhook.failed", "webhook.dead"})
