import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from datetime import timedelta

from click.testing import CliRunner

from tests.ojs.eye import until
from tests.program_environment import program_environment
from waybill.cli.main import main
from waybill.ojs import Jobs, Retry, Worker

QUEUE = "cli-top"


async def work(uri: str) -> str:
    async with Jobs(uri) as jobs:

        @jobs.handler("top.fail", queue=QUEUE, retry=Retry(max_attempts=1))
        async def fail() -> None:
            raise ValueError("no good")

        await fail.push()
        await jobs.push("top.waits", queue=QUEUE, delay=timedelta(days=1))
        async with Worker(jobs) as worker:
            await until(lambda: worker.counts["discarded"] == 1)
            result = await asyncio.to_thread(
                lambda: CliRunner().invoke(main, ["top", "--once", "--json", "--uri", uri])
            )
            assert worker.id in result.output
            return result.output


def test_one_look_as_json_and_as_a_table(waybill_uri: str) -> None:
    snapshot = json.loads(asyncio.run(work(waybill_uri)))
    queue = next(one for one in snapshot["queues"] if one["queue"] == QUEUE)
    assert queue["counts"]["discarded"] == 1
    assert snapshot["depths"][QUEUE] == {"ready": 0, "dead": 1, "consumers": 1}
    assert {"type": "top.fail", "error": "ValueError: no good", "count": 1} in snapshot["failures"]
    shown = CliRunner().invoke(main, ["top", "--once", "other", "--uri", waybill_uri]).output
    assert QUEUE in shown
    assert "ValueError: no good" in shown
    assert "other" in shown


def test_without_events_it_says_why(waybill_uri: str) -> None:
    result = CliRunner().invoke(main, ["top", "--once", "--uri", waybill_uri, "--prefix", "nobody."])
    assert result.exit_code == 1
    assert "there is no event stream nobody.ojs.events" in result.output


def test_ctrl_c_ends_the_live_view_cleanly(waybill_uri: str) -> None:
    asyncio.run(work(waybill_uri))
    master, slave = pty.openpty()
    environment = program_environment(TERM="xterm")
    command = [sys.executable, "-m", "waybill", "top", "--uri", waybill_uri, "--interval", "0.1"]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=subprocess.PIPE, env=environment) as process:
        os.close(slave)
        seen = b""
        while QUEUE.encode() not in seen:
            seen += os.read(master, 65536)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        error = process.stderr.read()
        assert process.wait(20) == 0, error
        assert b"Traceback" not in error
    os.close(master)
