import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from click.testing import CliRunner, Result

from waybill.cli.job import command
from waybill.ojs import Coordinator, Jobs

QUEUE = "cli-control"


@pytest.fixture
def coordinator(waybill_uri: str) -> Iterator[None]:
    """A coordinator in a thread of its own: the commands run loops of theirs."""
    ready, done = Event(), Event()

    async def coordinate() -> None:
        async with Coordinator(Jobs(waybill_uri), queues=[QUEUE]):
            ready.set()
            await asyncio.to_thread(done.wait)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(asyncio.run, coordinate())
        assert ready.wait(20)
        yield
        done.set()
        running.result(20)


def invoke(uri: str, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--uri", uri, "--queue", QUEUE])


@pytest.mark.usefixtures("coordinator")
def test_a_job_is_pushed_listed_cancelled_and_asked_for(waybill_uri: str) -> None:
    job_id = invoke(waybill_uri, "push", "--create", "email.send").output.strip()
    assert json.loads(invoke(waybill_uri, "info", job_id, "--json").output)["state"] == "available"
    assert invoke(waybill_uri, "cancel", job_id).output == "requested\n"
    assert "cancelled" in invoke(waybill_uri, "info", job_id).output
    listed = json.loads(invoke(waybill_uri, "list", "--state", "cancelled", "--json").output)
    assert [job["id"] for job in listed] == [job_id]
    assert "email.send" in invoke(waybill_uri, "list").output
    everywhere = CliRunner().invoke(command, ["list", "--uri", waybill_uri])
    assert job_id in everywhere.output
    assert "queue" in everywhere.output
    missing = invoke(waybill_uri, "info", "018f0000-0000-7000-8000-000000000000")
    assert missing.exit_code == 1
    assert "is unknown" in missing.output


@pytest.mark.usefixtures("coordinator")
def test_a_job_is_watched_until_it_has_ended(waybill_uri: str) -> None:
    job_id = invoke(waybill_uri, "push", "--create", "email.send").output.strip()
    invoke(waybill_uri, "cancel", job_id)
    watched = invoke(waybill_uri, "watch", job_id, "--json")
    assert watched.exit_code == 1
    assert json.loads(watched.output.splitlines()[-1])["state"] == "cancelled"
