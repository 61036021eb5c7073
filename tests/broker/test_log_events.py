"""What an operator reads in the log: who came and went, what was refused and why, and never a password."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import struct
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess
from tests.conformance.requirement import requirement
from tests.security.siege import login
from waybill.broker import Broker, FirstUser
from waybill.broker.commit_loop import SLOW_SYNC_S
from waybill.broker.log import BrokerLog, one_line
from waybill.client import ClientError, Inspector, connect
from waybill.transport.clock import Clock
from waybill.wire.amqp091.frames import method_frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_channel import ChannelOpen, ChannelOpenOk
from waybill.wire.amqp091.methods_connection import ConnectionClose, ConnectionCloseOk

SECRET = "s3cret-word"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="waybill.broker")
    return caplog


def lines(log: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in log.records if getattr(record, "event", "") == event]


async def until(log: pytest.LogCaptureFixture, event: str) -> str:
    async with asyncio.timeout(20):
        while not lines(log, event):
            await asyncio.sleep(0)
    return lines(log, event)[-1]


async def test_connections_come_and_go(log: pytest.LogCaptureFixture) -> None:
    async with Broker(port=0, users=[FirstUser("ada", SECRET, (), {"/": (".*", ".*", ".*")})]) as broker:
        assert lines(log, "listening") == [f"listening: AMQP on 127.0.0.1:{broker.port}"]
        async with connect(broker.uri("/", "ada", SECRET)):
            assert "user 'ada', vhost '/'" in await until(log, "connection opened")
        assert "user 'ada', vhost '/'" in await until(log, "connection ended")
    assert lines(log, "stopped") == ["stopped: nothing is stored"]
    assert SECRET not in log.text


@requirement("091-connection.close-ok.reporting")
@pytest.mark.parametrize(
    ("last", "answer", "says"),
    [
        (b"", ChannelOpenOk, "vhost '/', without a close"),
        (method_frame(1, ChannelOpen()), ConnectionClose, "vhost '/', without an answer to our close"),
        (method_frame(0, ConnectionClose(200, "bye", 0, 0)), ConnectionCloseOk, "vhost '/'"),
    ],
    ids=["open", "closing", "closed"],
)
async def test_a_socket_that_ends_without_close_ok_is_told(
    log: pytest.LogCaptureFixture, last: bytes, answer: type[Method], says: str
) -> None:
    async with Broker(port=0) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(login() + last)
        await reader.readuntil(struct.pack(">HH", answer.CLASS_ID, answer.METHOD_ID))
        writer.close()
        assert (await until(log, "connection ended")).endswith(says)


@pytest.mark.parametrize(
    ("user", "password", "virtual_host", "event", "says"),
    [
        ("ada", "wrong-" + SECRET, "/", "login refused", "user 'ada' from 127.0.0.1:"),
        ("eve", SECRET, "/", "login refused", "there is no such user"),
        ("ada", SECRET, "/nowhere", "connection closed", "530 NOT_ALLOWED - vhost /nowhere not found"),
        ("ada", SECRET, "/ojs", "connection closed", "access to vhost '/ojs' refused for user 'ada'"),
    ],
)
async def test_refusals_have_a_reason(
    log: pytest.LogCaptureFixture, user: str, password: str, virtual_host: str, event: str, says: str
) -> None:
    async with Broker(port=0, users=[FirstUser("ada", SECRET, (), {"/": (".*", ".*", ".*")})]) as broker:
        with pytest.raises(ClientError):
            async with connect(broker.uri(virtual_host, user, password)):
                pass
        assert says in await until(log, event)
    assert SECRET not in log.text


async def test_a_fault_of_a_channel_is_told(log: pytest.LogCaptureFixture) -> None:
    async with Broker(port=0) as broker, connect(broker.uri()) as connection:
        channel = await connection.channel()
        with pytest.raises(ClientError):
            await channel.consume("no\nsuch\nqueue")
        said = await until(log, "channel closed")
        assert "channel 1: 404 NOT_FOUND - no queue 'no\\nsuch\\nqueue' in vhost '/'" in said


async def test_whoever_asks_for_a_queue_that_is_missing_makes_no_record(log: pytest.LogCaptureFixture) -> None:
    async with Broker(port=0) as broker, connect(broker.uri()) as connection:
        assert await Inspector(connection).queue("missing") is None
        assert not await Inspector(connection).has_exchange("missing")
    assert lines(log, "channel closed") == []


async def test_an_alarm_begins_and_ends(log: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    async with Broker(port=0, data_dir=tmp_path) as broker:
        broker.reconfigure(disk_free_limit_bytes=1 << 50)
        broker.reconfigure(disk_free_limit_bytes=0)
    assert lines(log, "alarm") == [
        f"alarm: low on disk: less than {1 << 30} MiB free; blocking publishers",
    ]
    assert len(lines(log, "alarm over")) == 1


async def test_administration_is_told_without_passwords(log: pytest.LogCaptureFixture) -> None:
    async with Broker(port=0) as broker:
        admin = broker.administration
        admin.put_user("ada", SECRET, ("monitoring",))
        admin.put_user("ada", SECRET + "2")
        admin.set_permission("ada", "/", "a", "b", "c")
        admin.add_virtual_host("v")
        admin.set_policy("v", "short", "^q", {"max-length": 3})
        admin.clear_policy("v", "short")
        admin.delete_virtual_host("v")
        admin.delete_user("ada")
    assert lines(log, "user added")[-1] == "user added: 'ada', tags monitoring"
    assert lines(log, "user changed") == ["user changed: 'ada', tags none"]
    assert lines(log, "policy set") == ["policy set: 'short' in vhost 'v': '^q', {'max-length': 3}"]
    assert lines(log, "policy cleared") == ["policy cleared: 'short' in vhost 'v'"]
    assert "vhost deleted: 'v'" in log.text
    assert "user deleted: 'ada'" in log.text
    assert SECRET not in log.text


class SlowClock(Clock):
    """Time that a sync takes on a bad disk: each look at the clock is later by a second."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1_700_000_000.0

    def now(self) -> float:
        self.time += SLOW_SYNC_S
        return self.time


async def test_a_slow_sync_is_told(log: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    async with Broker(port=0, data_dir=tmp_path, clock=SlowClock()):
        pass
    assert "a sync took" in lines(log, "slow sync")[0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é", "plain é"),
        ("two\nlines\r\x1b[31m", "two\\nlines\\r\\x1b[31m"),
        ("not \udcff text", "not \\udcff text"),
        ("x" * 5000, "x" * 2000 + "..."),
    ],
)
def test_names_of_peers_make_no_lines_of_their_own(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_what_the_level_leaves_out_costs_no_count(log: pytest.LogCaptureFixture) -> None:
    log.set_level(logging.WARNING, logger="waybill.broker")
    broker_log = BrokerLog(Clock())
    for _ in range(100):
        broker_log.info("connection opened", "x")
    broker_log.report_suppressed()
    assert log.records == []


async def test_a_broker_writes_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYBILL_LOG_FORMAT", "json")
    monkeypatch.setenv("WAYBILL_USERS", json.dumps({"ada": {"password": SECRET}}))
    with BrokerProcess(tmp_path) as broker:
        with contextlib.suppress(ClientError):
            async with connect(f"amqp://ada:not-{SECRET}@127.0.0.1:{broker.port}/"):
                pass
        broker.stop()
    written = [json.loads(line) for line in broker.log().splitlines()]
    (refused,) = [line for line in written if line.get("attributes", {}).get("event") == "login refused"]
    assert (refused["severity"], refused["component"], refused["logger"]) == ("WARN", "server", "waybill.broker")
    assert "user 'ada'" in refused["message"]
    assert refused["attributes"]["user"] == "ada"
    assert refused["attributes"]["address"].startswith("127.0.0.1:")
    assert SECRET not in broker.log()
