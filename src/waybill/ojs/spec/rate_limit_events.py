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


class RateLimitDropped(EventData, frozen=True, kw_only=True):
    """A job was discarded, because the limit of its key is reached and its policy says so."""

    key: str
    job_id: str
    job_type: str


class RateLimitAdjusted(EventData, frozen=True, kw_only=True):
    """No job of a key starts until a time, as the called service has requested."""

    key: str
    until: str
    reason: str
