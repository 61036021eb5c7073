import json
from pathlib import Path

import pytest
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


def test_a_queue_gets_partitions_and_is_one_queue_for_commands(
    waybill_uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    runner = CliRunner()
    for name, more in (("undivided", ()), ("divided", ("--partitions", "letters=4"))):
        uri = ("context", "add", name, waybill_uri, *PREFIX, *more)
        assert runner.invoke(main, uri).output == f"added {name}\n"
    for number in range(20):
        pushed = ["job", "push", "email.send", str([number]), "--queue", "letters", "--create"]
        assert runner.invoke(main, [*pushed, "--context", "undivided"]).exit_code == 0
    found = json.loads(topology(waybill_uri, "check", "letters", "--partitions", "letters=4", "--json").stdout)
    wrong = {
        one["name"].removeprefix("cli-topology."): one["standing"] for one in found if one["standing"] == "different"
    }
    assert wrong == {"ojs.queue.letters": "different"}
    assert "moved 20" in topology(waybill_uri, "migrate", "letters", "--to-partitions", "letters=4").stdout
    assert topology(waybill_uri, "check", "letters", "--partitions", "letters=4").exit_code == 0
    assert topology(waybill_uri, "declare", "letters", "--partitions", "letters=4").exit_code == 0
    assert topology(waybill_uri, "declare", "letters", "--partitions", "letters=5").exit_code == 1
    listed = runner.invoke(main, ["queue", "list", "letters", "--json", "--context", "divided"])
    assert json.loads(listed.output)[0]["ready"] == 20
    assert runner.invoke(main, ["queue", "resume", "letters", "--context", "divided"]).exit_code == 0
    checked = runner.invoke(main, ["doctor", "letters", "--json", "--context", "divided"])
    assert "20 jobs wait without a consumer" in checked.output
    purged = runner.invoke(main, ["queue", "purge", "letters", "--yes", "--json", "--context", "divided"])
    assert json.loads(purged.output)["purged"] == 20


def test_partitions_are_counted() -> None:
    for wrong in ("letters", "letters=", "letters=0", "letters=257", "letters=x", "Letters=2", "=2"):
        result = topology("amqp://localhost", "declare", "letters", "--partitions", wrong)
        assert result.exit_code == 2, wrong


def test_it_must_be_said_what_changes(waybill_uri: str) -> None:
    result = topology(waybill_uri, "migrate", "inbox", "--to-prefix", "cli-topology.")
    assert result.exit_code == 2
    assert "Choose what to change" in result.output


def test_the_event_stream_is_divided_and_keeps_what_it_has(
    waybill_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    runner, prefix = CliRunner(), "cli-events."
    added = runner.invoke(
        main, ["context", "add", "three", waybill_uri, "--prefix", prefix, "--event-partitions", "3", "--json"]
    )
    assert added.exit_code == 0, added.output
    own = ["letters", "--uri", waybill_uri, "--prefix", prefix]
    assert runner.invoke(main, ["topology", "declare", *own]).exit_code == 0
    assert runner.invoke(main, ["job", "push", "letter.write", "--queue", "letters", *own[1:]]).exit_code == 0
    before = runner.invoke(main, ["topology", "check", "letters", "--context", "three", "--json"])
    missing = {one["name"].removeprefix(prefix) for one in json.loads(before.stdout) if one["standing"] == "missing"}
    exchanges = {"ojs.exchange.events.partitions", "ojs.exchange.events.rest"}
    assert missing == {"ojs.events-1", "ojs.events-2", *exchanges}
    assert runner.invoke(main, ["topology", "migrate", *own, "--to-event-partitions", "3"]).exit_code == 0
    assert runner.invoke(main, ["topology", "check", "letters", "--context", "three"]).exit_code == 0
    shown = runner.invoke(main, ["top", "--once", "--json", "--context", "three"])
    assert [one["queue"] for one in json.loads(shown.stdout)["queues"]] == ["letters"]
    lowered = runner.invoke(
        main, ["topology", "migrate", "letters", "--context", "three", "--to-event-partitions", "2"]
    )
    assert lowered.exit_code == 2
    assert "cannot be lowered" in lowered.output
