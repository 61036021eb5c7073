import asyncio
import json

from click.testing import CliRunner, Result

from tests.ojs.eye import until
from waybill.cli.dlq import command
from waybill.cli.main import main
from waybill.ojs import Jobs, Retry, Worker

QUEUE = "cli-dead"


def invoke(uri: str, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--uri", uri, "--queue", QUEUE])


async def die(uri: str, errors: list[str]) -> list[str]:
    async with Jobs(uri) as jobs:

        @jobs.handler("cli.dead", queue=QUEUE, retry=Retry(max_attempts=1))
        async def fail(text: str) -> None:
            raise ValueError(text)

        pushed = await jobs.push_many([fail.job(text) for text in errors])
        async with Worker(jobs) as worker:
            await until(lambda: worker.counts["discarded"] == len(errors))
        return [envelope.id for envelope in pushed]


def test_dead_letters_are_grouped_tried_again_and_dropped(waybill_uri: str) -> None:
    ids = asyncio.run(die(waybill_uri, ["file 1", "file 2", "other"]))
    listed = json.loads(invoke(waybill_uri, "list", "--json").output)
    assert [job["id"] for job in listed] == ids
    groups = json.loads(invoke(waybill_uri, "list", "--groups", "--json").output)
    assert [group["jobs"] for group in groups] == [2, 1]
    assert "ValueError" in invoke(waybill_uri, "list", "--groups").output
    assert json.loads(invoke(waybill_uri, "show", ids[0], "--json").output)["envelope"]["args"] == ["file 1"]
    dry = invoke(waybill_uri, "retry", "--group", groups[0]["group"], "--dry-run")
    assert dry.output == "would have retried 2\n"
    assert invoke(waybill_uri, "retry", "--group", groups[0]["group"], "--set", 'args=["x"]').stdout == "retried 2\n"
    assert invoke(waybill_uri, "discard", ids[2]).stdout == "discarded 1\n"
    assert json.loads(invoke(waybill_uri, "purge", "--yes", "--json").output) == {"purged": 0}


def test_it_must_be_said_which(waybill_uri: str) -> None:
    assert invoke(waybill_uri, "retry").exit_code == 2
    assert CliRunner().invoke(main, ["queue", "declare", QUEUE, "--uri", waybill_uri]).exit_code == 0
    for arguments in (["retry", "x"], ["discard", "x"], ["retry", "x", "--dry-run"]):
        result = invoke(waybill_uri, *arguments)
        assert (result.exit_code, "1 of 1 jobs are not among the dead letters" in result.output) == (1, True)
    result = invoke(waybill_uri, "retry", "--group", "x")
    assert (result.exit_code, "has no group x" in result.output) == (1, True)
    assert invoke(waybill_uri, "discard", "x", "--all").exit_code == 2
    assert "must be JSON" in invoke(waybill_uri, "retry", "x", "--set", "args=[").output
    assert "no field 'arg'; did you mean args?" in invoke(waybill_uri, "retry", "x", "--set", "arg=[1]").output


def test_a_mistyped_queue_is_told_and_not_made(waybill_uri: str) -> None:
    for _ in range(2):
        missing = CliRunner().invoke(command, ["list", "--uri", waybill_uri, "--queue", "cli-daed"])
        assert missing.exit_code == 1
        assert "queue cli-daed has no dead letter queue" in missing.output
        assert "Hint: " in missing.output
