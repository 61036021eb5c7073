"""Events as clients see them in real time: changes of a job's state, and its progress (ojs-realtime section 4)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from waybill.backend.job_form import Form
from waybill.backend.listeners import Listeners
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.states import State

CHANGED: Final = "job.state_changed"
ENDS: Final = {"job.completed": "completed", "job.discarded": "failed", "job.cancelled": "cancelled"}
STATES: Final = {
    "job.enqueued": State.AVAILABLE.value,
    "job.scheduled": State.SCHEDULED.value,
    "job.started": State.ACTIVE.value,
    "job.retrying": State.RETRYABLE.value,
    "job.completed": State.COMPLETED.value,
    "job.discarded": State.DISCARDED.value,
    "job.cancelled": State.CANCELLED.value,
}
MOST_FOLLOWED: Final = 10_000
"""The number of jobs per listener whose previous states are remembered, if there are few listeners."""
_ACTIVE: Final = State.ACTIVE.value


class StateChanges:
    """Converts events for one listener: the previous state, if known, and the new one."""

    def __init__(self, states: dict[str, str], listeners: Listeners, names: Collection[str] = ()) -> None:
        """`states` are those known before, by job. `names` selects kinds of changes; without any, all are converted."""
        self._states = states
        self._listeners = listeners
        self._names = frozenset(names)

    def form_of(self, event: ReceivedEvent) -> tuple[str, Form] | None:
        """Return the name and the data of a change; None if there is none, or it is not selected."""
        if event.type == "job.progress":
            name, form = event.type, _percent_form(event)
        elif event.type in STATES:
            name, form = CHANGED, self._change(event)
        else:
            return None
        return (name, form) if not self._names or name in self._names else None

    def _change(self, event: ReceivedEvent) -> Form:
        """Return a state change; its previous state is the last one sent, or the usual predecessor."""
        to, states = STATES[event.type], self._states
        usual = State.AVAILABLE.value if to in {_ACTIVE, State.CANCELLED.value, State.AVAILABLE.value} else _ACTIVE
        came = states.get(event.subject, usual)
        states[event.subject] = to
        if event.type in ENDS:
            del states[event.subject]
        most = min(MOST_FOLLOWED, self._listeners.most_followed)
        while len(states) > most:
            del states[next(iter(states))]
        return {
            "job_id": event.subject,
            "queue": event.data.get("queue"),
            "type": event.data.get("job_type"),
            "from": came,
            "to": to,
            "timestamp": event.time,
        }


def _percent_form(event: ReceivedEvent) -> Form:
    percent = event.data.get("progress_percent")
    form: Form = {"job_id": event.subject, "timestamp": event.time}
    form["progress"] = round(percent) if isinstance(percent, int | float) else 0
    if isinstance(event.data.get("progress_message"), str):
        form["message"] = event.data["progress_message"]
    return form
