import json

from click.testing import CliRunner, Result

from tests.cli.test_job import push
from waybill.cli.queue import command

QUEUE = "cli-queue"


def invoke(uri: str, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--uri", uri])


def test_a_queue_is_declared_listed_and_purged(waybill_uri: str) -> None:
    assert invoke(waybill_uri, "declare", QUEUE).output == f"declared {QUEUE}\n"
    push(waybill_uri, "email.send", "--queue", QUEUE)
    rows = json.loads(invoke(waybill_uri, "list", QUEUE, "--json").output)
    assert rows == [{"queue": QUEUE, "ready": 1, "retrying": 0, "dead": 0, "consumers": 0, "paused": False}]
    assert QUEUE in invoke(waybill_uri, "list", QUEUE).output
    assert json.loads(invoke(waybill_uri, "purge", QUEUE, "--yes", "--json").output)["purged"] == 1


def test_what_is_not_there_is_an_error(waybill_uri: str) -> None:
    missing = invoke(waybill_uri, "list", "cli-no-such-queue")
    assert (missing.exit_code, "there is no queue" in missing.output) == (1, True)
    assert invoke(waybill_uri, "purge", "Bad", "--yes").exit_code == 2


def test_a_queue_that_is_missing_is_not_paused(waybill_uri: str) -> None:
    result = invoke(waybill_uri, "pause", "cli-puase")
    assert (result.exit_code, "there is no queue cli-puase" in result.output) == (1, True)
    assert invoke(waybill_uri, "resume", "cli-puase").output == "cli-puase was not paused\n"


def test_a_queue_is_paused_and_resumed(waybill_uri: str) -> None:
    invoke(waybill_uri, "declare", "cli-pause")
    assert invoke(waybill_uri, "pause", "cli-pause", "--by", "ada").output == "paused cli-pause\n"
    again = json.loads(invoke(waybill_uri, "pause", "cli-pause", "--json").output)
    assert again == {"paused": ["cli-pause"], "changed": []}
    assert json.loads(invoke(waybill_uri, "list", "cli-pause", "--json").output)[0]["paused"]
    resumed = json.loads(invoke(waybill_uri, "resume", "cli-pause", "--json").output)
    assert resumed == {"resumed": ["cli-pause"], "changed": ["cli-pause"]}
    assert not json.loads(invoke(waybill_uri, "list", "cli-pause", "--json").output)[0]["paused"]


def test_without_names_all_that_were_used_are_listed(waybill_uri: str) -> None:
    push(waybill_uri, "email.send", "--queue", "cli-used")
    rows = json.loads(invoke(waybill_uri, "list", "--json").output)
    assert "cli-used" in [row["queue"] for row in rows]
    nothing = CliRunner().invoke(command, ["list", "--json", "--uri", waybill_uri, "--prefix", "nobody."])
    assert (nothing.exit_code, json.loads(nothing.output)) == (0, [])
