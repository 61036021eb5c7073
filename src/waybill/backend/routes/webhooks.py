"""Webhooks: subscriptions and deliveries (ojs-webhooks section 10)."""

from __future__ import annotations

from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.errors import RequestRefused, invalid, not_found
from waybill.backend.job_form import Form
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import page_of
from waybill.backend.router import ADMIN, READ, Route
from waybill.backend.webhook_sender import check_url
from waybill.backend.webhooks import Sent, Subscription, Webhooks, new_secret, new_subscription_id
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.operator_events import SubscriptionCreated, SubscriptionDeleted

MAX_EVENTS: Final = 100
MAX_NAME: Final = 255
MAX_METADATA_BYTES: Final = 16 * 1024
MOST_DELIVERIES: Final = 1000
_BASE: Final = "/ojs/v1/webhooks"
_FILTERS: Final = ("queues", "job_types")


class WebhookRoutes:
    """The routes for webhooks."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        one = f"{_BASE}/subscriptions/{{id}}"
        return [
            Route("POST", f"{_BASE}/subscriptions", self._create, ADMIN),
            Route("GET", f"{_BASE}/subscriptions", self._list, READ),
            Route("GET", one, self._get, READ),
            Route("PATCH", one, self._change, ADMIN),
            Route("PUT", one, self._change, ADMIN),
            Route("DELETE", one, self._remove, ADMIN),
            Route("POST", f"{one}/test", self._test, ADMIN),
            Route("POST", f"{one}/rotate-secret", self._rotate, ADMIN),
            Route("GET", f"{_BASE}/deliveries", self._deliveries, READ, is_large=True),
            Route("GET", f"{_BASE}/deliveries/{{id}}", self._delivery, READ),
            Route("POST", f"{_BASE}/deliveries/{{id}}/retry", self._replay, ADMIN),
        ]

    @property
    def _webhooks(self) -> Webhooks:
        return self._backend.extensions.webhooks

    async def _create(self, request: Request) -> Response:
        body = request.json(required=True)
        if "events" not in body:
            raise invalid("events", "must be an array of event types")
        made = self._read(
            body, Subscription(new_subscription_id(), "", [], new_secret(), tenant=request.tenant), is_new=True
        )
        await self._webhooks.ensure_queue()
        await self._webhooks.subscriptions.put(made.id, made)
        self._webhooks.tell(made.id, SubscriptionCreated(subscription_id=made.id))
        form = self._form_of(made) | {"secret": made.secret}
        return answer({**form, "subscription": form}, 201, [("Location", f"{_BASE}/subscriptions/{made.id}")])

    async def _list(self, request: Request) -> Response:
        forms = [self._form_of(one) for one in self._seen(request)]
        items, pagination = page_of(request, forms, lambda form: str(form["id"]))
        return answer({"subscriptions": items, "items": items, "count": len(items), "pagination": pagination})

    async def _get(self, request: Request) -> Response:
        return self._answer(self._one(request))

    async def _change(self, request: Request) -> Response:
        changed = self._read(request.json(required=True), self._one(request), is_new=False)
        await self._webhooks.subscriptions.put(changed.id, changed)
        return self._answer(changed)

    async def _remove(self, request: Request) -> Response:
        one = self._one(request)
        await self._webhooks.remove(one.id)
        self._webhooks.tell(one.id, SubscriptionDeleted(subscription_id=one.id))
        return answer({"deleted": True, "id": one.id})

    async def _rotate(self, request: Request) -> Response:
        rotated = self._one(request).rotated()
        await self._webhooks.subscriptions.put(rotated.id, rotated)
        return answer(self._form_of(rotated) | {"secret": rotated.secret, "old_secret_until": rotated.old_until})

    async def _test(self, request: Request) -> Response:
        one = self._one(request)
        event: Form = {
            "specversion": "1.0",
            "id": f"evt_{new_id()}",
            "type": "webhook.test",
            "source": f"ojs://waybill/coordinators/{self._backend.id}",
            "time": self._backend.now(),
            "subject": one.id,
            "data": {},
        }
        found = await self._webhooks.send(one, f"del_{new_id()}", event)
        told: Form = {"success": 200 <= found.status < 300, "status_code": found.status or None}
        told |= {"response_time_ms": round(found.seconds * 1000), "response_body": found.body, "error": found.error}
        return answer(told)

    async def _deliveries(self, request: Request) -> Response:
        wanted = request.query
        seen = {one.id for one in self._seen(request)}
        found = [
            one
            for one in await self._webhooks.deliveries(MOST_DELIVERIES)
            if not request.tenant or one[1].subscription in seen
        ]
        forms = [
            _form_of(delivery_id, sent)
            for delivery_id, sent in found
            if wanted.get("subscription_id") in {None, "", sent.subscription}
            and wanted.get("state", wanted.get("status")) in {None, "", sent.state}
        ]
        items, pagination = page_of(request, forms, lambda form: str(form["id"]))
        return answer({"deliveries": items, "items": items, "count": len(items), "pagination": pagination})

    async def _delivery(self, request: Request) -> Response:
        delivery_id, sent = await self._known(request)
        return answer(_form_of(delivery_id, sent) | {"event": sent.event})

    async def _replay(self, request: Request) -> Response:
        delivery_id, sent = await self._known(request)
        if sent.state == "pending":
            raise RequestRefused("conflict", "This delivery is still pending.")
        await self._webhooks.replay(delivery_id, sent)
        return answer({"id": delivery_id, "state": "pending"}, 202)

    async def _known(self, request: Request) -> tuple[str, Sent]:
        delivery_id = request.parameters["id"]
        found = await self._webhooks.find(delivery_id) if len(delivery_id) <= 100 else None
        if found is None or (request.tenant and found.subscription not in {one.id for one in self._seen(request)}):
            raise not_found("delivery", delivery_id)
        return delivery_id, found

    def _one(self, request: Request) -> Subscription:
        found = self._webhooks.subscriptions.get(request.parameters["id"])
        if found is None or request.tenant not in {"", found.tenant}:
            raise not_found("subscription", request.parameters["id"])
        return found

    def _seen(self, request: Request) -> list[Subscription]:
        """Return the subscriptions that a client may see; tenants see their own."""
        found = [one for _, one in self._webhooks.subscriptions.items()]
        return [one for one in found if request.tenant in {"", one.tenant}]

    def _answer(self, one: Subscription) -> Response:
        form = self._form_of(one)
        return answer({**form, "subscription": form})

    def _form_of(self, one: Subscription) -> Form:
        """Return a subscription without its secrets."""
        form: Form = {"id": one.id, "url": one.url, "events": one.events, "active": one.active}
        given = {"queues": one.queues, "job_types": one.job_types}
        form |= {"filter": {name: names for name, names in given.items() if names}, "metadata": one.metadata}
        if self._webhooks.subscriptions.get(one.id) is not None:
            form["created_at"] = self._webhooks.subscriptions.created_at(one.id)
        return form

    def _read(self, body: Form, before: Subscription, *, is_new: bool) -> Subscription:
        """Return the subscription of a request. Raises RequestRefused."""
        changes: Form = {}
        if is_new or "url" in body:
            changes["url"] = check_url(body.get("url"), allows_private=self._webhooks.allows_private)
        if "events" in body:
            changes["events"] = _names(body, "events", is_required=True)
        wanted = body.get("filter")
        if wanted is not None:
            if not isinstance(wanted, dict):
                raise invalid("filter", "must be an object")
            unknown = next((str(name) for name in wanted if name not in _FILTERS), None)
            if unknown is not None:
                raise invalid(f"filter.{unknown}"[:100], f"is unknown; there are {' and '.join(_FILTERS)}")
            changes |= {name: _names(wanted, name) for name in _FILTERS}
        active, metadata = body.get("active", before.active), body.get("metadata", before.metadata)
        if not isinstance(active, bool):
            raise invalid("active", "must be true or false")
        if not isinstance(metadata, dict) or len(msgspec.json.encode(metadata)) > MAX_METADATA_BYTES:
            raise invalid("metadata", f"must be an object of at most {MAX_METADATA_BYTES} bytes")
        return msgspec.structs.replace(before, active=active, metadata=metadata, **changes)


def _form_of(delivery_id: str, sent: Sent) -> Form:
    form: Form = {
        "id": delivery_id,
        "subscription_id": sent.subscription,
        "event_id": sent.event.get("id"),
        "event_type": sent.event.get("type"),
        "state": sent.state,
        "status": sent.state,
        "attempts": sent.attempts,
        "created_at": sent.created_at,
    }
    if sent.state == "pending":
        form["next_attempt_at"] = sent.next_at
    if sent.status_code:
        form["status_code"] = sent.status_code
    if sent.error:
        form["error"] = sent.error
    if sent.ended_at:
        form["ended_at"] = sent.ended_at
    return form


def _names(body: Form, name: str, *, is_required: bool = False) -> list[str]:
    value = body.get(name, [])
    if not isinstance(value, list) or not all(isinstance(one, str) and 0 < len(one) <= MAX_NAME for one in value):
        raise invalid(name, "must be an array of strings")
    if len(value) > MAX_EVENTS or (is_required and not value):
        raise invalid(name, f"must have 1 to {MAX_EVENTS} elements")
    return value
