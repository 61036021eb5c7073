"""`waybill workflow` against a coordinator."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from waybill.cli.workflow import command
from waybill.ojs import Coordinator, FailJob, Jobs, Worker, Workflow, chain, group

QUEUE = "cli-workflow"


@pytest.fixture
def ids(waybill_uri: str) -> Iterator[tuple[str, str]]:
    """A workflow that has failed and one that waits for its worker, with a coordinator in a thread."""
    jobs = Jobs(waybill_uri)
    runner = asyncio.Runner()

    @jobs.handler("cli.good", queue=QUEUE)
    async def good() -> None: ...

    @jobs.handler("cli.bad", queue=QUEUE)
    async def bad() -> None:
        raise FailJob("it is bad")

    async def prepare() -> tuple[str, str]:
        async with Coordinator(jobs, queues=[QUEUE]):
            async with Worker(jobs, queues=[QUEUE]):
                failed = await chain(good.job(), group(bad.job(), good.job()), good.job()).named("bad").push(jobs)
                await failed.wait(timeout=30)
            graph = Workflow("graph")
            graph.step("second", good.job(), depends_on=[graph.step("first", good.job())])
            waiting = await graph.push(jobs)
            await waiting.info()
        await jobs.close()
        return failed.id, waiting.id

    yield runner.run(prepare())
    runner.close()


def call(uri: str, *arguments: str) -> Result:
    """Call the command while a coordinator runs."""

    async def run() -> Result:
        async with Jobs(uri) as jobs, Coordinator(jobs, queues=[QUEUE]):
            return await asyncio.to_thread(CliRunner().invoke, command, [*arguments, "--uri", uri])

    return asyncio.run(run())


def test_workflows_are_listed_shown_cancelled_and_retried(waybill_uri: str, ids: tuple[str, str]) -> None:
    failed, waiting = ids
    listed = json.loads(call(waybill_uri, "list", "--json", "--limit", "2").output)
    assert [(one["id"], one["state"]) for one in listed] == [(waiting, "pending"), (failed, "failed")]
    assert failed in call(waybill_uri, "list", "--state", "failed").output
    tree = call(waybill_uri, "show", failed)
    assert tree.exit_code == 0, tree.output
    for line in ("chain", "0 cli.good completed", "1 group failed", "0 cli.bad failed", "2 cli.good cancelled"):
        assert line in tree.output
    assert "1.0: it is bad (HANDLER_ERROR)" in tree.output
    assert "second cli.good waiting after first" in call(waybill_uri, "show", waiting).output
    cancelled = json.loads(call(waybill_uri, "cancel", waiting, "--json").output)
    assert cancelled["state"] == "cancelled"
    again = call(waybill_uri, "cancel", waiting)
    assert (again.exit_code, "is cancelled" in again.output) == (1, True)
    assert json.loads(call(waybill_uri, "retry", failed, "--json").output)["state"] == "running"
    assert "no coordinator knows" in call(waybill_uri, "show", "01a2b3c4-d5e6-7abc-8def-012300000000").output
