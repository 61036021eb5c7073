import json

from click.testing import CliRunner, Result

from waybill.cli.main import main
from waybill.testing import TestBroker


def test_it_measures_and_leaves_nothing_behind() -> None:
    with TestBroker() as broker:
        command = ["bench", "--uri", broker.uri()]
        result = CliRunner().invoke(main, [*command, "--jobs", "300", "--json"])
        assert result.exit_code == 0, result.output
        figures = json.loads(result.stdout)
        assert "jobs per second" in CliRunner().invoke(main, [*command, "--jobs", "10", "--work", "1"]).output
        assert broker._do(lambda running: list(running.node.virtual_hosts["/ojs"].queues)) == []
        exchanges = broker._do(lambda running: list(running.node.virtual_hosts["/ojs"].exchanges))
        assert [name for name in exchanges if "ojs" in name] == []
    assert figures["jobs"] == 300
    assert figures["jobs_per_second"] > 0
    assert figures["enqueue_per_second"] > 0
    for name in ("push_milliseconds", "push_to_start_milliseconds"):
        assert 0 < figures[name]["p50"] <= figures[name]["p95"] <= figures[name]["p99"]


def test_many_jobs_are_pushed_from_a_file_and_by_count(waybill_uri: str) -> None:
    lines = '["a"]\n\n{"type": "other.job", "args": ["b"], "priority": 7, "queue": "cli-many-2"}\n'

    def push(*arguments: str, stdin: str = "") -> Result:
        command = ["job", "push-many", "--create", *arguments, "--queue", "cli-many", "--uri", waybill_uri]
        return CliRunner().invoke(main, command, input=stdin)

    first = push("--type", "some.job", "--json", stdin=lines)
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["pushed"] == 2
    assert push("--type", "some.job", "--count", "3000", "--args", "[1]").stdout.startswith("pushed 3000 jobs in ")
    listed = CliRunner().invoke(main, ["queue", "list", "cli-many", "cli-many-2", "--json", "--uri", waybill_uri])
    assert [row["ready"] for row in json.loads(listed.output)] == [3001, 1]
    for stdin, text in (
        ("[1]\n", "line 1 has no type"),
        ('{"args": 5, "type": "a.b"}\n', "line 1: Expected `array`, got `int` - at `$.args`"),
        ('{"type": "a.b"}\nnonsense\n', "line 2: JSON is malformed"),
        ('{"type": "a.b", "priority": "high"}\n', "line 1: Expected `int`"),
        ('{"type": "a.b", "prioritty": 1}\n', "unknown field `prioritty`"),
        ('{"type": "A B"}\n', "type: 'A B'"),
    ):
        wrong = push(stdin=stdin)
        assert (wrong.exit_code, text in wrong.output) == (2, True), wrong.output
    assert push("--count", "5").exit_code == 2
