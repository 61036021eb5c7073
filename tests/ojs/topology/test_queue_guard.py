"""A name that nobody has declared is a typo until somebody says otherwise."""

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from waybill.cli.main import main
from waybill.ojs import Jobs, PushFailed, UnknownQueue, Worker
from waybill.testing import fake


async def test_a_push_to_a_typo_is_refused_and_names_the_queue_that_is_meant(broker_uri: str, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("guard.own", queue=queue_name)
        async def own() -> None: ...

        await own.push()
        with pytest.raises(PushFailed) as refused:
            await own.options(queue=f"{queue_name}x").push()
        assert refused.value.code == "NOT_FOUND"
        text = str(refused.value)
        assert f"nobody has declared queue {queue_name}x; did you mean {queue_name}" in text
        assert "Jobs(create_queues=True)" in text
        assert isinstance(refused.value.__cause__, UnknownQueue)
        await jobs.push("anything.else")


async def test_a_queue_of_another_program_is_no_typo(broker_uri: str, queue_name: str) -> None:
    async with Jobs(broker_uri, create_queues=True) as other, Jobs(broker_uri) as jobs:

        @jobs.handler("guard.own", queue=queue_name)
        async def own() -> None: ...

        await other.push("guard.other", queue=f"{queue_name}-other")
        await jobs.push("guard.other", queue=f"{queue_name}-other")
        async with Worker(jobs, queues=[queue_name, f"{queue_name}-other"]):
            pass


async def test_a_worker_of_a_typo_does_not_start(broker_uri: str, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("guard.own", queue=queue_name)
        async def own() -> None: ...

        with pytest.raises(UnknownQueue, match=rf"{queue_name}y; did you mean {queue_name}"):
            await Worker(jobs, queues=[f"{queue_name}y"]).start()


async def test_a_program_without_handlers_is_warned_or_strict(
    broker_uri: str, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Jobs(broker_uri, create_queues=False) as strict:
        with pytest.raises(PushFailed, match="nobody has declared"):
            await strict.push("guard.any", queue=queue_name)
    with caplog.at_level(logging.WARNING, "waybill.ojs.topology"):
        async with Jobs(broker_uri) as jobs:
            await jobs.push("guard.any", queue=queue_name)
            await jobs.push("guard.any", queue=queue_name)
            for more in (f"{queue_name}.urgent", f"eu-{queue_name}"):
                await jobs.push("guard.any", queue=more)
            with pytest.raises(PushFailed, match=f"did you mean {queue_name}"):
                await jobs.push("guard.any", queue=f"x{queue_name}")
            await jobs.push("guard.any", queue=f"{queue_name}-7")
            await jobs.push("guard.any", queue=f"{queue_name}-8")
    assert len([one for one in caplog.records if "did not exist" in one.getMessage()]) == 5
    async with Jobs(broker_uri, create_queues=False) as strict:
        await strict.push("guard.any", queue=queue_name)


def test_the_commands_say_so(broker_uri: str, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def waybill(*arguments: str, text: str | None = None) -> tuple[int, str]:
        done = CliRunner().invoke(main, [*arguments, "--uri", broker_uri], input=text)
        return done.exit_code, done.output

    assert waybill("job", "push", "guard.any", "--queue", f"parcels-{queue_name}")[0] == 0
    typo = f"parcles-{queue_name}"
    code, output = waybill("job", "push", "guard.any", "--queue", typo)
    assert (code, f"did you mean parcels-{queue_name}" in output, "--create" in output) == (1, True, True), output
    code, output = waybill("job", "push-many", "--type", "guard.any", "--queue", typo, text="[]\n")
    assert (code, "--create" in output) == (1, True), output
    assert waybill("job", "push-many", "--type", "guard.any", "--queue", typo, "--create", text="[]\n")[0] == 0
    assert waybill("job", "push", "guard.any", "--queue", typo)[0] == 0
    (tmp_path / "guarded_program.py").write_text(
        "from waybill import Jobs\njobs = Jobs()\n@jobs.handler('a.b', queue='known')\nasync def known() -> None: ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    code, output = waybill("worker", "guarded_program:jobs", "--queues", "knwon")
    assert (code, "did you mean known?" in output) == (1, True), output


def test_without_a_broker_any_name_is_kept() -> None:
    jobs = Jobs("amqp://127.0.0.1:1", create_queues=False)
    with fake(jobs) as pushed:
        jobs.sync.push("guard.any", queue="never-heard-of")
    pushed.assert_enqueued("guard.any", queue="never-heard-of")
