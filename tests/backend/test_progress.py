"""Progress and checkpoints: told by workers, known to everybody, and there for the next attempt."""

from __future__ import annotations

import asyncio
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
import pytest

from tests.backend.conftest import FAST, Client, client_of
from waybill.backend.backend import Backend
from waybill.backend.event_streams import event_text, gap_text
from waybill.backend.message import Response
from waybill.ojs import Jobs


async def put(client: Client, job_id: str, status: int = 200, **body: object) -> Any:
    return await client.ask("PUT", f"/ojs/v1/jobs/{job_id}/progress", body, status)


async def progress(client: Client, job_id: str) -> Any:
    return await client.ask("GET", f"/ojs/v1/jobs/{job_id}/progress")


async def active(client: Client, retry: object = None) -> str:
    job_id = await client.push(retry=retry)
    [fetched] = await client.fetch()
    assert fetched["id"] == job_id
    return job_id


async def read_stream(response: Response) -> list[tuple[str, Any]]:
    """Return the events of a stream until it ends."""
    assert (response.status, dict(response.headers)["Content-Type"]) == (200, "text/event-stream")
    assert response.stream is not None
    text = b"".join([piece async for piece in response.stream]).decode()
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:
            found.append((fields["event"], msgspec.json.decode(fields["data"])))
    return found


async def test_progress_is_known_at_once_and_never_goes_back(client: Client) -> None:
    job_id = await active(client)
    found = await progress(client, job_id)
    assert (found["progress"], found["data"], found["state"]) == (None, None, "active")
    assert (await put(client, job_id, progress=0.47, data={"rows": 14}))["acknowledged"]
    assert (await put(client, job_id, progress=0.25))["progress"] == 0.47
    found = await progress(client, job_id)
    assert (found["progress"], found["data"], found["job_id"]) == (0.47, {"rows": 14}, job_id)
    for said, known in ((0.3, 0.47), (1.3, 1.0), (-4, 1.0)):
        assert (await put(client, job_id, progress=said, message="nearly"))["progress"] == known
        assert (await progress(client, job_id))["progress"] == known
    assert (await progress(client, job_id))["message"] == "nearly"
    headers = dict((await client.send("GET", f"/ojs/v1/jobs/{job_id}/progress")).headers)
    told = parsedate_to_datetime(headers["Last-Modified"])
    assert told == datetime.fromisoformat((await progress(client, job_id))["updated_at"]).replace(microsecond=0)


async def test_progress_lasts_over_the_end_and_begins_anew_with_an_attempt(client: Client) -> None:
    done, failed = await active(client), await active(client, retry=FAST)
    await put(client, done, progress=0.5)
    await client.ack(done)
    assert (await progress(client, done))["progress"] == 1.0
    await put(client, failed, progress=0.73)
    await client.nack(failed)
    assert (await progress(client, failed))["progress"] == 0.73
    await client.fetch(wait_ms=10_000)
    assert (await progress(client, failed))["progress"] is None


async def test_progress_of_a_job_that_is_not_active_is_passed_by(client: Client) -> None:
    job_id = await client.push()
    assert not (await put(client, job_id, progress=0.5))["acknowledged"]
    assert (await progress(client, job_id))["progress"] is None
    await put(client, "nobody", 404, progress=0.5)
    await client.ask("GET", "/ojs/v1/jobs/nobody/progress", status=404)
    await client.ask("GET", "/ojs/v1/jobs/nobody/progress/stream", status=404)


@pytest.mark.parametrize(
    "body", [{}, {"progress": "half"}, {"progress": True}, {"data": []}, {"message": 7, "progress": 1}]
)
async def test_what_is_no_progress_is_refused(client: Client, body: dict[str, object]) -> None:
    await put(client, await active(client), 400, **body)


async def test_progress_is_a_heartbeat(client: Client) -> None:
    await client.push()
    [job] = await client.fetch(visibility_timeout_ms=60_000)
    lease = client.backend.leases.get(job["id"])
    assert lease is not None
    lease.visible_until -= 30
    before = lease.visible_until
    await put(client, job["id"], progress=0.1)
    assert lease.visible_until > before


async def test_a_checkpoint_is_there_for_the_next_attempt(client: Client) -> None:
    job_id = await active(client, retry=FAST)
    path = f"/ojs/v1/jobs/{job_id}/checkpoint"
    await client.ask("GET", path, status=404)
    for number in (1, 2):
        found = await client.ask("POST", path, {"state": {"row": number}, "worker_id": "w1"})
        assert found["checkpoint"]["sequence"] == number
    assert (await client.ask("GET", path))["checkpoint"]["state"] == {"row": 2}
    await client.ask("POST", path, {"state": 1, "worker_id": "w2"}, 409)
    await client.nack(job_id)
    [again] = await client.fetch(wait_ms=10_000)
    assert (again["checkpoint"]["state"], again["checkpoint"]["sequence"]) == ({"row": 2}, 2)
    # ojs-progress section 6.2
    assert again["last_checkpoint"] == {"row": 2}
    assert (await client.ask("POST", path, {"state": None}))["checkpoint"]["sequence"] == 3
    assert (await client.ask("DELETE", path))["deleted"]
    await client.ask("GET", path, status=404)
    await client.ack(job_id)
    await client.ask("POST", path, {"state": 1}, 409)
    await client.ask("POST", path, {}, 400)
    await client.ask("POST", "/ojs/v1/jobs/nobody/checkpoint", {"state": 1}, 404)


async def test_a_checkpoint_may_have_the_number_of_its_worker(client: Client) -> None:
    path = f"/ojs/v1/jobs/{await active(client)}/checkpoint"
    for number in (0, 7):
        found = await client.ask("POST", path, {"state": number, "sequence": number})
        assert found["checkpoint"]["sequence"] == number
    error = (await client.ask("POST", path, {"state": 8, "sequence": 7}, 409))["error"]
    assert error["details"]["current_sequence"] == 7
    await client.ask("POST", path, {"state": 8, "sequence": -1}, 400)
    assert (await client.ask("GET", path))["checkpoint"]["state"] == 7
    assert (await client.ask("POST", path, {"state": 8}))["checkpoint"]["sequence"] == 8


async def test_a_requeued_job_keeps_its_checkpoint_and_begins_without_progress(client: Client) -> None:
    """It is the same attempt, and the last report of its former worker was not sent yet."""
    job_id = await active(client)
    for number in (0.3, 0.5):
        await put(client, job_id, progress=number)
    await client.ask("POST", f"/ojs/v1/jobs/{job_id}/checkpoint", {"state": {"row": 1}})
    await put(client, job_id, progress=0.6)
    await client.nack(job_id, requeue=True)
    [again] = await client.fetch()
    assert (again["attempt"], again["checkpoint"]["state"]) == (1, {"row": 1})
    await put(client, job_id, progress=0.1)
    assert (await progress(client, job_id))["progress"] == 0.1
    await client.nack(job_id, requeue=True)
    [again] = await client.fetch()
    assert again["checkpoint"]["state"] == {"row": 1}
    await put(client, job_id, progress=0.2)
    await client.ack(job_id)
    assert (await progress(client, job_id))["progress"] == 1.0


async def test_the_last_report_of_an_attempt_is_kept(client: Client) -> None:
    """Reports are sent once a second: the end of the attempt does not wait for that."""
    job_id = await active(client)
    for row in (1, 2):
        await put(client, job_id, data={"row": row})
    await client.ack(job_id)
    assert (await progress(client, job_id))["data"] == {"row": 2}


async def test_a_checkpoint_outlives_the_server_that_took_it(uri: str) -> None:
    async with client_of(uri) as other:
        doomed = Client(gone := Backend(Jobs(uri, results=False)))
        await gone.start()
        job_id = await active(doomed)
        await doomed.ask("POST", f"/ojs/v1/jobs/{job_id}/checkpoint", {"state": [1, 2]})
        # The way of a process that is killed.
        gone.leases._leases.clear()
        gone._settlement = None
        await gone.broker.connection.close()
        [again] = await other.fetch(wait_ms=10_000)
        assert (again["id"], again["checkpoint"]["state"]) == (job_id, [1, 2])


async def test_a_checkpoint_has_a_limit(client: Client) -> None:
    path = f"/ojs/v1/jobs/{await active(client)}/checkpoint"
    await client.ask("POST", path, {"state": "x" * (1024 * 1024)}, 413)


async def test_a_stream_tells_of_progress_until_the_end(client: Client) -> None:
    job_id = await active(client)
    await put(client, job_id, progress=0.25)
    stream = await client.send("GET", f"/ojs/v1/jobs/{job_id}/progress/stream")
    reading = asyncio.ensure_future(read_stream(stream))
    while not len(client.backend.events.listeners):
        await asyncio.sleep(0)
    await put(client, job_id, progress=0.5, data={"rows": 5})
    await progress(client, job_id)
    await client.ack(job_id, result=[7])
    events = await reading
    assert [(name, event["progress"]) for name, event in events] == [
        ("progress", 0.25),
        ("progress", 0.5),
        ("completed", 1.0),
    ]
    assert events[1][1]["data"] == {"rows": 5}
    assert len(client.backend.events.listeners) == 0
    late = await read_stream(await client.send("GET", f"/ojs/v1/jobs/{job_id}/progress/stream"))
    assert late[-1][0] == "completed"
    assert await read_stream(await client.send("GET", f"/ojs/v1/jobs/{job_id}/result/stream")) == [
        ("progress", {**late[0][1]}),
        ("result", {"value": [7]}),
    ]


async def test_changes_of_states_are_streamed(client: Client) -> None:
    job_id = await client.push()
    job = await client.send("GET", f"/ojs/v1/jobs/{job_id}/events")
    queue = await client.send("GET", "/ojs/v1/queues/email/events")
    everything = await client.send("GET", "/ojs/v1/events/stream?types=job.completed")
    reading = [asyncio.ensure_future(read_stream(one)) for one in (job, queue, everything)]
    while len(client.backend.events.listeners) < 3:
        await asyncio.sleep(0)
    await client.fetch()
    await client.ack(job_id)
    changes = await reading[0]
    assert [(one["from"], one["to"]) for _, one in changes] == [("available", "active"), ("active", "completed")]
    client.backend.events.listeners.end()
    assert [name for name, _ in await reading[1]] == ["job.state_changed", "job.state_changed", "server.shutdown"]
    assert [name for name, _ in await reading[2]] == ["job.completed", "server.shutdown"]
    await client.ask("GET", "/ojs/v1/queues/nothing/events", status=404)
    await client.ask("GET", "/ojs/v1/jobs/nobody/events", status=404)


async def test_who_comes_back_gets_what_it_has_missed(client: Client) -> None:
    await client.push()
    [first] = (await client.ask("GET", "/ojs/v1/events"))["events"]
    job_id = await client.push()
    client.backend.events.listeners.end()
    for last, told in ((first["id"], ["job.enqueued"]), ("evt_gone", ["system.gap"])):
        response = await client.send("GET", "/ojs/v1/events/stream", **{"last-event-id": last})
        names = [name for name, event in await read_stream(response) if event.get("subject", job_id) == job_id]
        assert names == [*told, "server.shutdown"]


@pytest.mark.parametrize(
    ("last", "begin"),
    [("evt_019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f", "2025-01-13T21:53:14.283Z"), ("evt_nonsense", None)],
)
def test_a_gap_says_since_when_events_are_missing(last: str, begin: str | None) -> None:
    """ojs-realtime section 4.5."""
    _, _, data = gap_text("queue:email", last).partition(b"data: ")
    gap = msgspec.json.decode(data)
    assert (gap["channel"], gap["gap_start"]) == ("queue:email", begin or gap["gap_end"])


async def test_a_checkpoint_may_have_the_number_0(client: Client) -> None:
    job_id = await client.push()
    await client.fetch()
    path = f"/ojs/v1/jobs/{job_id}/checkpoint"
    assert (await client.ask("POST", path, {"state": 1, "sequence": 0}))["checkpoint"]["sequence"] == 0
    assert (await client.ask("GET", path))["checkpoint"]["sequence"] == 0
    await client.ask("POST", path, {"state": 2, "sequence": 0}, 409)
    assert (await client.ask("POST", path, {"state": 2}))["checkpoint"]["sequence"] == 1


def test_an_id_cannot_break_out_of_its_line() -> None:
    assert b"\ndata: evil" not in event_text("a\ndata: evil", {}, "1\ndata: evil")
