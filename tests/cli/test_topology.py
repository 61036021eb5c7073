import json

from click.testing import CliRunner, Result

from tests.cli.test_job import push
from waybill.cli.main import main

PREFIX = ("--prefix", "cli-topology.")


def topology(uri: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["topology", *arguments, "--uri", uri, *PREFIX])


def test_a_topology_is_declared_checked_and_migrated(waybill_uri: str) -> None:
    missing = topology(waybill_uri, "check", "inbox")
    assert missing.exit_code == 1
    assert "cli-topology.ojs.queue.inbox" in missing.output
    assert topology(waybill_uri, "declare", "inbox").output == "declared inbox\n"
    whole = topology(waybill_uri, "check", "inbox", "--json")
    assert whole.exit_code == 0
    assert {finding["standing"] for finding in json.loads(whole.output)} == {"agrees"}
    different = topology(waybill_uri, "check", "inbox", "--queue-type", "quorum")
    assert different.exit_code == 1
    assert "x-queue-type" in different.output
    assert push(waybill_uri, "email.send", "--queue", "inbox", *PREFIX).exit_code == 0
    change = ("migrate", "inbox", "--to-prefix", "cli-topology-2.")
    plan = json.loads(topology(waybill_uri, *change, "--dry-run", "--json").stdout)
    assert (plan["moved"], plan["dry_run"], [move["count"] for move in plan["plan"]]) == (0, True, [1])
    assert "moved 1" in topology(waybill_uri, *change, "--delete").stdout
    assert json.loads(topology(waybill_uri, *change, "--json").stdout)["plan"] == []
    listed = CliRunner().invoke(
        main, ["queue", "list", "inbox", "--json", "--uri", waybill_uri, "--prefix", "cli-topology-2."]
    )
    assert json.loads(listed.output)[0]["ready"] == 1


def test_it_must_be_said_what_changes(waybill_uri: str) -> None:
    result = topology(waybill_uri, "migrate", "inbox", "--to-prefix", "cli-topology.")
    assert result.exit_code == 2
    assert "Choose what to change" in result.output
