import json

from click.testing import CliRunner, Result

from waybill.cli.main import main


def doctor(uri: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments, "--uri", uri])


def test_problems_are_named_with_cause_and_remedy(waybill_uri: str) -> None:
    sick = doctor(waybill_uri, "cli-doctor")
    assert sick.exit_code == 1
    assert "problem queue ojs.queue.cli-doctor: it is not there" in sick.output
    assert "remedy   `waybill topology declare`" in sick.output
    CliRunner().invoke(main, ["topology", "declare", "cli-doctor", "--uri", waybill_uri])
    well = doctor(waybill_uri, "cli-doctor", "--json")
    assert well.exit_code == 0, well.output
    assert {one["check"] for one in json.loads(well.output)} == {"no-consumers", "no-coordinator"}


def test_a_broker_that_is_not_there_is_a_finding_too(free_port: int) -> None:
    gone = doctor(f"amqp://ada:s3cret@127.0.0.1:{free_port}", "--json")
    assert gone.exit_code == 1
    assert [one["check"] for one in json.loads(gone.output)] == ["connection"]
    assert "s3cret" not in gone.output


def test_bad_input_is_a_usage_error(waybill_uri: str) -> None:
    assert doctor(waybill_uri, "Bad").exit_code == 2
    assert doctor(waybill_uri, "--management", "ftp://x").exit_code == 1
