"""What happens to limits, as events (ojs-rate-limiting section 11.1)."""

from __future__ import annotations

from waybill.ojs.spec.event_data import EventData


class RateLimitExceeded(EventData, frozen=True, kw_only=True):
    """A job cannot start, because the limit of its key is reached."""

    key: str
    strategy: str
    limit: int
    current: int
    job_id: str


class RateLimitReleased(EventData, frozen=True, kw_only=True):
    """A job that was held back by the limit of its key may start."""

    key: str
    strategy: str
    job_id: str
