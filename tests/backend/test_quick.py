"""What is usual goes a quicker way, in groups: it does what the way of everything else does."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from tests.backend.conftest import Client
from waybill.backend import backend as backend_module
from waybill.backend import push_group, quick_acks
from waybill.backend.job_text import open_text
from waybill.backend.message import Request
from waybill.backend.push_flight import PushFlight
from waybill.backend.push_group import PushGroups
from waybill.backend.quick_acks import QuickAcks
from waybill.backend.request_template import RequestTemplates
from waybill.backend.routes import workers
from waybill.backend.usual_bodies import RequestedJob
from waybill.ojs.coordinator.memory_job_store import MemoryJobStore
from waybill.ojs.coordinator.stream_fold import StreamFold
from waybill.ojs.observe.own_events import OwnEvent
from waybill.ojs.spec.events import ReceivedEvent


def _nested(depth: int) -> object:
    """An array in an array, and so on."""
    found: object = 1
    for _ in range(depth):
        found = [found]
    return found


ABOUT_RESULT = ("result_stored_at", "result_size_bytes")
CHANGING = (
    "id",
    "job_id",
    "scheduled_at",
    "created_at",
    "enqueued_at",
    "started_at",
    "completed_at",
    "job",
    "jobs",
    *ABOUT_RESULT,
)
PUSHES: list[dict[str, object]] = [
    {"type": "a.b", "args": []},
    {"type": "a.b", "args": [1, "x", None, 1.5, {"a": ['"<meta>"', "<args>", "é"]}]},
    {"type": "a.b", "args": ["x"], "meta": {"a": {"b": 1}, "<meta>": 0}},
    {"type": "a.b", "args": ["x"], "meta": {}, "options": {"queue": "q", "priority": 5}},
    {"type": "a.b", "args": ["x"], "options": {"retry": {"max_attempts": 7, "initial_interval_ms": 5}}},
    {"type": "a.b", "args": ["x"], "options": {"timeout_ms": 5000, "visibility_timeout_ms": 70000}, "queue": "z"},
    {"type": "a.b", "args": ["x"], "options": {"tags": ["x"], "unique": {"keys": ["type", "args"]}}},
    {"type": "a.b", "args": ["x"], "options": {"delay_until": "+PT60S"}},
    {"type": "a.b", "args": ["x"], "options": {"pending": True}},
    {"type": "A", "args": []},
    {"type": "a.b", "args": [2**60]},
    {"type": "a.b", "args": {}},
    {"type": "a.b", "args": [], "options": {"queue": "BAD"}},
    {"type": "a.b", "args": [], "options": {"priority": "high"}},
    {"type": "a.b", "args": [], "options": []},
    {"type": "a.b", "args": [], "meta": []},
    {"type": "a.b", "args": [], "meta": {"x": "y" * 70_000}},
]

DEEP: list[dict[str, object]] = []
"""What is nested, some of it too deeply."""
for depth in (60, 70, 300):
    DEEP.append({"type": "a.b", "args": [_nested(depth)]})
    DEEP.append({"type": "a.b", "args": [], "meta": {"x": _nested(depth)}})
    DEEP.append({"type": "a.b", "args": [], "options": {"retry": _nested(depth)}})


def _same(form: Any) -> Any:
    """What does not change from job to job."""
    if isinstance(form, list):
        return [_same(one) for one in form]
    if not isinstance(form, dict):
        return form
    return {name: _same(value) for name, value in form.items() if name not in CHANGING and name != "request_id"}


async def _outcome(client: Client, body: dict[str, object], path: str = "/ojs/v1/jobs") -> tuple[int, Any, Any]:
    response = await client.send("POST", path, body)
    found = msgspec.json.decode(response.body)
    known = _same(await client.job(found["id"])) if response.status == 201 and "id" in found else None
    jobs = [_same(one) for one in found.get("jobs", [])]
    return response.status, (_same(found), _same(found.get("job")), jobs), known


async def test_both_ways_to_push_do_the_same(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for queue in ("default", "q", "z"):
        await client.push(queue)
    quick = [await _outcome(client, body) for body in PUSHES + DEEP if "unique" not in str(body)]
    batches: list[dict[str, object]] = [{"jobs": PUSHES[:6]}]
    batches.extend({"jobs": [PUSHES[0], one]} for one in DEEP)
    quick += [await _outcome(client, batch, "/ojs/v1/jobs/batch") for batch in batches]
    monkeypatch.setattr(PushGroups, "_begin", lambda *_: None)
    slow = [await _outcome(client, body) for body in PUSHES + DEEP if "unique" not in str(body)]
    slow += [await _outcome(client, batch, "/ojs/v1/jobs/batch") for batch in batches]
    for first, second in zip(quick, slow, strict=True):
        assert first == second


async def test_what_is_usual_goes_the_quick_way(client: Client) -> None:
    await client.push("default")
    backend = client.backend
    templates = RequestTemplates(10)
    for body in PUSHES[:6]:
        job = msgspec.json.decode(msgspec.json.encode(body), type=RequestedJob)
        assert templates.find(job) is not None, body
    ids = await asyncio.gather(*(client.push("default") for _ in range(20)))
    assert len(set(ids)) == 20
    assert await backend.view.knows(ids, 0.0)
    jobs = await client.fetch("default", count=20)
    assert [one["id"] for one in jobs[1:]] == ids[:19]


async def test_both_ways_to_acknowledge_do_the_same(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = []
    for is_quick in (True, False):
        if not is_quick:
            monkeypatch.setattr(QuickAcks, "ack", lambda *_: None)
            client = Client(client.backend)
        for result in (None, {"ok": True}, "é", [1]):
            await client.push()
            job = (await client.fetch())[0]
            told = await client.ack(job["id"], worker_id="w1", result=result)
            again = await client.ack(job["id"], 409)
            outcomes.append(
                (_same(told), _same(told["job"]), _same(await client.job(job["id"])), again["error"]["code"])
            )
    assert outcomes[:4] == outcomes[4:]


@pytest.mark.plain_source
async def test_jobs_are_shown_by_their_texts_as_they_are_decoded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd: list[dict[str, object]] = [
        {"type": "a.b", "args": [{"state": 1, "worker_id": None, "result": "x"}]},
        {"type": "a.b", "args": ['"attempt":0}', "é", None], "options": {"timeout_ms": 5000}},
        {"type": "a.b", "args": [], "options": {"priority": -5, "metadata": {"priority": 1}, "tags": ["x"]}},
        {"type": "a.b", "args": [], "unknown": {"state": [1]}, "worker_id": "mine"},
    ]
    bodies = PUSHES[:6] + odd
    used: list[bool] = []

    def note(*arguments: Any) -> object:
        found = open_text(*arguments)
        used.append(found is not None)
        return found

    async def outcomes() -> list[object]:
        found: list[object] = []
        for body in bodies:
            options = {**body.get("options", {}), "queue": "shown"}  # type: ignore[dict-item]
            await client.ask("POST", "/ojs/v1/jobs", {**body, "options": options, "queue": None}, 201)
            fetched = (await client.fetch("shown"))[0]
            told = await client.ack(fetched["id"], result={"n": [1]})
            job = await client.job(fetched["id"])
            # Only the lookup of a job describes its result.
            assert told["job"] == {name: job[name] for name in job if name not in ABOUT_RESULT}
            assert fetched["args"] == body["args"]
            assert told["completed_at"] == told["job"]["completed_at"]
            found.append((_same(fetched), _same(told), _same(told["job"])))
        return found

    for module in (workers, quick_acks):
        monkeypatch.setattr(module, "open_text", note)
    by_texts = await outcomes()
    # Jobs as most are; of the others, some can be taken for what they are not.
    assert used[:4] == [True] * 4
    for module in (workers, quick_acks):
        monkeypatch.setattr(module, "open_text", lambda *_: None)
    assert by_texts == await outcomes()


@pytest.mark.plain_source
async def test_what_the_view_does_not_hear_of_is_not_waited_for_any_more(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = client.backend
    job_id = await client.push()
    with monkeypatch.context() as patch:
        patch.setattr(backend_module, "FOLD_SECONDS", 0.01)
        patch.setattr(backend.broker.events, "record_started", lambda *_: None)
        assert [job["id"] for job in await client.fetch()] == [job_id]
    assert not backend.view.expectations.waiting
    with monkeypatch.context() as patch:
        patch.setattr(quick_acks, "FOLD_SECONDS", 0.0)
        patch.setattr(quick_acks, "POLL_SECONDS", 0.01)
        patch.setattr(backend.settlement, "completed", lambda *_: None)
        told = await client.ack(job_id, 504)
    assert told["error"]["code"] == "backend_timeout"
    assert not backend.view.expectations.waiting


def _event(kind: str, time: int, **data: object) -> OwnEvent:
    data |= {"job_type": "a", "queue": "q"}
    event = ReceivedEvent(f"evt_{kind}{time}", f"job.{kind}", "s", f"2026-01-01T00:00:0{time}Z", "id", data)
    return OwnEvent(event, "", b'{"args":[1]}' if kind == "enqueued" else None)


def _pushed(job_id: str, time: str = "2026-01-01T00:00:01Z", queue: str = "q", **data: object) -> OwnEvent:
    data = {"job_type": "a.b", "queue": queue, "priority": 3} | data
    event = ReceivedEvent(f"evt_{job_id}", "job.enqueued", "s", time, job_id, data)
    return OwnEvent(event, "", b'{"id":"<id>","args":["<time>","<job>"]}')


def test_new_jobs_are_kept_as_a_fold_would_keep_them(monkeypatch: pytest.MonkeyPatch) -> None:
    member = "01a2b3c4-d5e6-7abc-8def-012301000007"
    adopted = [
        ([_pushed("1"), _pushed("2", queue="r"), _pushed("3")], "guest"),
        ([_pushed("4"), _pushed("4")], "guest"),
        ([_pushed("1"), _pushed("5")], "other"),
        ([_pushed("6", time="é"), _pushed("7", time='"'), _pushed("<id>", time="<time>")], None),
        ([_pushed("8", unique_key="k"), _pushed("9", scheduled_at="2027-01-01T00:00:00Z")], '"<job>"'),
        ([_pushed('"'), _pushed("\\"), _pushed("é"), _pushed(member)], "<time>"),
        ([_event("completed", 2, attempt=1), _pushed("id")], "guest"),
    ]
    quick, slow = MemoryJobStore(), MemoryJobStore()
    for events, user in adopted:
        quick.adopt(events, user)
    monkeypatch.setattr(MemoryJobStore, "_adopt_new", lambda *_: False)
    for events, user in adopted:
        slow.adopt(events, user)
    for job_id in ("id", member, *(one.event.subject for events, _ in adopted for one in events)):
        assert quick._jobs.held(job_id) == slow._jobs.held(job_id), job_id
        assert quick.detail(job_id) == slow.detail(job_id)
    assert quick.counts() == slow.counts()
    assert quick.count_changes(None).counts == slow.count_changes(None).counts


def test_own_events_are_folded_as_those_of_the_stream_are() -> None:
    events = [
        _event("enqueued", 1, priority=2),
        _event("started", 2, worker_id="w", attempt=1),
        _event("completed", 3, attempt=1, duration_ms=5, result={"a": 1}),
        _event("started", 4, worker_id="v", attempt=2),
    ]
    for order in itertools.permutations(events):
        adopted, folded = MemoryJobStore(), MemoryJobStore()
        for offset, own in enumerate(order):
            adopted.adopt([own], "user")
            event = own.event
            data = event.data | ({} if own.job is None else {"job": msgspec.json.decode(own.job)})
            folded.apply([(offset, [msgspec.structs.replace(event, data=data, user="user")])])
        assert adopted.detail("id") == folded.detail("id")
        assert adopted.owner("id") == folded.owner("id")
        assert adopted.counts() == folded.counts()
        again = [(offset, [own.event]) for offset, own in enumerate(order)]
        before = adopted.detail("id")
        adopted.apply(again)
        assert before is not None
        found = adopted.detail("id")
        assert found is not None
        assert (found.info.state, found.info.attempt) == (before.info.state, before.info.attempt)


async def test_what_was_fetched_for_a_client_that_has_gone_is_there_for_the_next(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await client.push()
    begun = asyncio.Event()

    async def wait(_leases: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(client.backend, "begun", wait)
        fetching = asyncio.ensure_future(client.fetch())
        await begun.wait()
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
    jobs = await client.fetch(wait_ms=5000)
    assert [(one["id"], one["attempt"]) for one in jobs] == [(job_id, 1)]


def _sizes_of_flights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of jobs of each flight that starts from now on."""
    sizes: list[int] = []
    start = PushFlight.start

    def counted(flight: PushFlight) -> bool:
        sizes.append(len(flight._jobs))
        return start(flight)

    monkeypatch.setattr(PushFlight, "start", counted)
    return sizes


@pytest.mark.plain_source
async def test_what_is_pushed_meanwhile_goes_out_together(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.push("default")
    sizes = _sizes_of_flights(monkeypatch)
    first = asyncio.ensure_future(client.push("default"))
    while not sizes:
        await asyncio.sleep(0)
    await asyncio.gather(first, *(client.push("default") for _ in range(30)))
    assert sizes == [1, 30]


async def test_the_stream_brings_nothing_new_of_what_is_known_by_its_confirm(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.push("default")
    view = client.backend.view
    folded: list[object] = []
    monkeypatch.setattr(StreamFold, "_fold", lambda *given: folded.append(given))
    ids = [await client.push("default") for _ in range(3)]
    while view.on_the_way:
        await asyncio.sleep(0)
    assert not folded
    reader = view._streams[0]._reader
    assert reader._stream is not None
    assert reader._stream.arguments["x-stream-offset"] == reader._next_offset - 1
    assert await view.knows(ids, 0.0)


@pytest.mark.plain_source
async def test_a_group_waits_for_those_who_were_just_answered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.push("default")
    groups = PushGroups(client.backend)
    sizes = _sizes_of_flights(monkeypatch)

    async def push(count: int) -> None:
        for _ in range(count):
            answer = groups.push(Request("POST", "/ojs/v1/jobs", body=b'{"type":"a.b","args":[]}'))
            assert answer is not None
            assert (await answer).status == 201

    monkeypatch.setattr(push_group, "PAUSE_SECONDS", 60)
    first = asyncio.ensure_future(push(6))
    while not sizes:
        await asyncio.sleep(0)
    await asyncio.gather(first, push(5), push(5))
    assert sizes == [1, 3, 3, 3, 3, 3]
    # Those who do not come back are not waited for again.
    sizes.clear()
    monkeypatch.setattr(push_group, "PAUSE_SECONDS", 0)
    first = asyncio.ensure_future(push(1))
    while not sizes:
        await asyncio.sleep(0)
    await asyncio.gather(first, push(1))
    assert (sizes, groups._pauses_skipped) == ([1, 1], push_group.PAUSES_SKIPPED)


@pytest.mark.plain_source
async def test_a_group_has_few_large_jobs(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer has its job twice: all of a hundred requests took 250 MB."""
    sizes: list[int] = []
    arrived = PushGroups._tell_all

    def tell(self: PushGroups, entries: Any, failed: Any) -> None:
        sizes.append(sum(len(job.body) for entry in entries for job in entry.jobs))
        arrived(self, entries, failed)

    monkeypatch.setattr(PushGroups, "_tell_all", tell)
    await client.push()
    job = {"type": "email.send", "args": ["x" * 200_000], "options": {"queue": "email"}}
    asked = [client.ask("POST", "/ojs/v1/jobs", job, 201) for _ in range(60)]
    ids = {found["job"]["id"] for found in await asyncio.gather(*asked)}
    assert len(ids) == 60
    assert max(sizes) <= push_group.MAX_GROUP_BYTES + 201_000


async def test_nobody_waits_for_a_view_that_cannot_be_written(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """For ten seconds, each request held its job, several times."""
    await client.push()
    monkeypatch.setattr(StreamFold, "is_stuck", True)

    async def never(*_: Any) -> bool:
        raise AssertionError("it waits for the view")

    monkeypatch.setattr(client.backend.view, "knows", never)
    await client.backend.applied(["01a2b3c4-d5e6-7abc-8def-012301000007"])


async def test_a_job_of_a_batch_is_no_larger_than_one_alone(client: Client) -> None:
    """Three batches of one job of 15 MB took 440 MB."""
    jobs = [{"type": "email.send", "args": ["x" * size]} for size in (700_000, 1_100_000)]
    error = (await client.ask("POST", "/ojs/v1/jobs/batch", {"jobs": jobs}, 413))["error"]
    assert error["details"]["index"] == 1
    assert error["details"]["actual_bytes"] > error["details"]["max_bytes"] == 1024 * 1024
    jobs[1] = jobs[0]
    assert (await client.ask("POST", "/ojs/v1/jobs/batch", {"jobs": jobs}, 201))["count"] == 2


async def test_the_jobs_of_a_batch_have_no_more_values_than_those_of_others(client: Client) -> None:
    """Six batches of two million short texts took 1.3 GB."""
    jobs = [{"type": "email.send", "args": ["a"] * 600} for _ in range(1000)]
    await client.ask("POST", "/ojs/v1/jobs/batch", {"jobs": jobs}, 413)
