"""The client over a socket, with aiohttp."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import chain, repeat
from pathlib import Path

import pytest

from waybill.backend.keys import KeyRing, add_key, read_keys
from waybill.backend.serving import Serving
from waybill.broker import Broker
from waybill.http.errors import NoAnswer, RequestRefused
from waybill.ojs import Jobs, PushFailed, Worker

pytest.importorskip("aiohttp", reason="needs aiohttp: make setup")

from waybill.http.connections import HttpExchange

PROGRAM = """
from waybill import Jobs
jobs = Jobs()

@jobs.handler("double")
async def double(number: int) -> int:
    return 2 * number
"""


@asynccontextmanager
async def broker_jobs() -> AsyncIterator[Jobs]:
    async with Broker(port=0) as broker:
        yield Jobs(broker.uri(), results=False)


@asynccontextmanager
async def serving(keys: KeyRing | None = None) -> AsyncIterator[str]:
    async with Serving(broker_jobs, "127.0.0.1", 0, keys=keys) as server:
        yield server.url


async def test_jobs_are_pushed_and_done_over_connections_that_are_kept() -> None:
    async with serving() as url, Jobs(url) as jobs:

        @jobs.handler("double")
        async def double(number: int) -> int:
            return 2 * number

        async with Worker(jobs):
            assert await (await double.push(21)).result(20) == 42
            many = [await double.push(number) for number in range(10)]
            assert [await job.result(20) for job in many] == [2 * number for number in range(10)]


async def test_the_key_is_in_the_url_and_in_no_message(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add_key(path, "shop", "operate")
    async with serving(read_keys(path)) as url:
        location = url.removeprefix("http://")
        async with Jobs(f"http://{key}@{location}") as jobs:
            assert (await jobs.push("email.send")).envelope.state == "available"
        async with Jobs(f"http://wb_wrong@{location}") as wrong, Jobs(url) as without:
            for jobs in (wrong, without):
                with pytest.raises(PushFailed, match="UNAUTHENTICATED") as push:
                    await jobs.push("email.send")
                with pytest.raises(RequestRefused, match="unauthenticated") as start:
                    await Worker(jobs).start()
                assert "wb_wrong" not in f"{push.value}{start.value}{start.value!r}"


async def test_odd_answers_are_no_answers() -> None:
    answers = [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/9 nonsense\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnull",
    ]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        exchange = HttpExchange(url)
        for _ in range(3):
            with pytest.raises(NoAnswer, match=url):
                await exchange.send("POST", "/")
        await exchange.close()
        async with Jobs(url) as jobs:
            with pytest.raises(RequestRefused, match="302"):
                await jobs.info("some")
            with pytest.raises(NoAnswer, match="without a JSON object"):
                await jobs.info("some")
    with pytest.raises(NoAnswer, match="cannot be reached"):
        await exchange.send("GET", "/")
    await exchange.close()


async def test_a_slow_answer_is_waited_for_no_longer_than_asked() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        closed.set()

    closed = asyncio.Event()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        exchange = HttpExchange(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(NoAnswer, match=r"within 0.05 s"):
            await exchange.send("GET", "/", timeout_seconds=0.05)
        await exchange.close()
        await closed.wait()


async def test_the_command_works_over_http_and_ctrl_c_drains(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(repository / "src")])}
    async with serving() as url, Jobs(url) as jobs:
        job = await jobs.push("double", [21])
        command = [sys.executable, "-m", "waybill", "worker", "program:jobs", "--uri", url, "--json"]
        pipe = asyncio.subprocess.PIPE
        worker = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe)
        try:
            assert await job.result(30) == 42
            worker.send_signal(signal.SIGINT)
            out, err = await asyncio.wait_for(worker.communicate(), 30)
        except BaseException:
            worker.kill()
            raise
        assert worker.returncode == 0, err.decode()
        assert b'"completed": 1' in out


@asynccontextmanager
async def answering(head: bytes, pieces: Iterable[bytes]) -> AsyncIterator[str]:
    """Serve a request with these pieces."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in chain([head], pieces):
            writer.write(piece)
            try:
                await writer.drain()
            except ConnectionError:
                break
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_an_answer_without_an_end_is_given_up() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with answering(head, repeat(b"100000\r\n" + bytes(1 << 20) + b"\r\n")) as url:
        exchange = HttpExchange(url)
        with pytest.raises(NoAnswer, match="more than"):
            await exchange.send("GET", "/ojs/v1/health")
        await exchange.close()


async def test_an_answer_is_not_inflated() -> None:
    small = gzip.compress(bytes(64 << 20))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(small)
    async with answering(head, [small]) as url:
        exchange = HttpExchange(url)
        assert (await exchange.send("GET", "/ojs/v1/health")).body == small
        await exchange.close()
