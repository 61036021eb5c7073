import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from waybill.cli.main import main

SECRET = "s3cret-word"


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("WAYBILL_URL", "WAYBILL_URI", "WAYBILL_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "waybill" / "contexts.json"


def waybill(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=stdin)


def test_contexts_are_kept_for_their_user_alone_and_never_show_a_password(settings: Path) -> None:
    first = waybill("context", "add", "home", f"amqp://ada:{SECRET}@home.example/%2Fojs")
    assert first.output == "added home\n"
    from_stdin = ("context", "add", "work", "-", "--prefix", "t1.", "--names", "web")
    assert waybill(*from_stdin, stdin=f"amqps://bob:{SECRET}@work.example\n").exit_code == 0
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600
    assert stat.S_IMODE(settings.parent.stat().st_mode) == 0o700
    rows = json.loads(waybill("context", "list", "--json").output)
    assert [(row["name"], row["current"], row["broker"], row["user"]) for row in rows] == [
        ("home", True, "amqp://home.example:5672/%2Fojs", "ada"),
        ("work", False, "amqps://work.example:5671/%2F", "bob"),
    ]
    assert waybill("context", "use", "work").output == "using work\n"
    shown = waybill("context", "list").output
    assert "work.example" in shown
    assert SECRET not in shown + first.output
    removed = json.loads(waybill("context", "remove", "work", "--json").output)
    assert removed == {"removed": "work", "current": None}


@pytest.mark.parametrize(
    "arguments",
    [
        ("context", "use", "nobody"),
        ("context", "remove", "nobody"),
        ("context", "add", "bad", f"http://ada:{SECRET}@x"),
        ("queue", "list", "email", "--context", "nobody"),
        ("queue", "list", "email", "--context", "a", "--uri", "b"),
        ("queue", "list", "email", "--uri", f"nonsense:{SECRET}"),
        ("job", "push", "email.send", "--uri", f"nonsense:{SECRET}"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    result = waybill(*arguments)
    assert result.exit_code == 2, result.output
    assert SECRET not in result.output


def test_a_broken_file_is_named_and_not_repeated(settings: Path) -> None:
    settings.parent.mkdir()
    settings.write_text(f'{{"contexts": {{"x": "{SECRET}"}}}}')
    result = waybill("queue", "list", "email")
    assert result.exit_code == 1
    assert str(settings) in result.output
    assert SECRET not in result.output


def test_the_order_in_which_brokers_are_looked_for(waybill_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address at which nobody listens shows by the error which one was taken."""

    def dead(name: str) -> str:
        return f"amqp://127.0.0.1:1/{name}"

    def taken(*arguments: str) -> str:
        return waybill("queue", "list", "email", *arguments).output

    waybill("context", "add", "current", dead("current"))
    waybill("context", "add", "other", dead("other"))
    assert "/current" in taken()
    monkeypatch.setenv("WAYBILL_CONTEXT", "other")
    assert "/other" in taken()
    monkeypatch.setenv("WAYBILL_URL", dead("url"))
    assert "/url" in taken()
    assert "/other" in taken("--context", "other")
    assert "/uri" in taken("--uri", dead("uri"))


def test_the_prefix_and_the_names_of_a_context_count(waybill_uri: str) -> None:
    waybill("context", "add", "tenant", waybill_uri, "--prefix", "tenant9.", "--names", "web")
    assert waybill("queue", "declare", "inbox").exit_code == 0
    row = json.loads(waybill("queue", "list", "inbox", "--json").output)[0]
    assert row["queue"] == "inbox"
    elsewhere = waybill("queue", "list", "inbox", "--uri", waybill_uri)
    assert elsewhere.exit_code == 1
    assert json.loads(waybill("queue", "list", "inbox", "--json", "--uri", waybill_uri, "--prefix", "tenant9.").output)


def test_errors_name_the_cause_and_a_hint(waybill_uri: str) -> None:
    wrong = waybill_uri.replace("guest:guest@", f"ada:{SECRET}@")
    refused = waybill("queue", "list", "email", "--uri", wrong)
    assert refused.exit_code == 1
    assert "Hint: check user 'ada' and the password" in refused.output
    unreachable = waybill("queue", "list", "email", "--uri", f"amqp://ada:{SECRET}@127.0.0.1:1", "--json")
    document = json.loads(unreachable.stderr)
    assert "127.0.0.1:1" in document["error"]
    assert "waybill broker" in document["hint"]
    no_host = waybill("queue", "list", "email", "--uri", waybill_uri.replace("%2Fojs", "nowhere"))
    assert "create the virtual host 'nowhere'" in no_host.output
    missing = waybill("queue", "list", "no-such-queue", "--uri", waybill_uri)
    assert "Hint: `waybill queue declare no-such-queue`" in missing.output
    unanswered = waybill("job", "list", "--queue", "no-coordinator", "--uri", waybill_uri)
    assert "Hint: start a coordinator" in unanswered.output
    assert SECRET not in refused.output + unreachable.output


def test_a_context_of_a_cluster() -> None:
    nodes = "amqp://a,b,c/%2Fojs"
    quorum = ("--queue-type", "quorum", "--replicas", "3", "--leader-locator", "balanced")
    assert waybill("context", "add", "cluster", nodes, *quorum).output == "added cluster\n"
    row = json.loads(waybill("context", "list", "--json").output)[0]
    assert row["broker"] == "amqp://a:5672,b:5672,c:5672/%2Fojs"
    assert (row["queue_type"], row["replicas"], row["leader_locator"]) == ("quorum", 3, "balanced")
    divided = ("--partitions", "orders=4", "--partitions", "mail=2")
    assert waybill("context", "add", "divided", nodes, *divided).output == "added divided\n"
    rows = {row["name"]: row for row in json.loads(waybill("context", "list", "--json").output)}
    assert rows["divided"]["partitions"] == {"orders": 4, "mail": 2}
    refused = waybill("context", "add", "wrong", nodes, "--replicas", "3")
    assert (refused.exit_code, "need queue_type quorum" in refused.output) == (2, True)
