"""A server that forks after it has pushed: gunicorn with --preload."""

import asyncio
import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.ojs.sync import gunicorn_program
from tests.program_environment import program_environment
from tests.rabbitmq import free_port
from waybill.ojs import Jobs, Worker
from waybill.testing import TestBroker, until


def ask(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def ask_when_it_listens(port: int, server: subprocess.Popen[bytes]) -> None:
    while True:
        try:
            ask(port, "/first")
        except ConnectionRefusedError:
            assert server.poll() is None, "gunicorn has ended"
            time.sleep(0.02)
        else:
            return


@contextmanager
def gunicorn(port: int, uri: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "gunicorn", "--preload", "-w", "2", "-b", f"127.0.0.1:{port}"]
    server = subprocess.Popen(
        [*command, "tests.ojs.sync.gunicorn_program:app"],
        env=program_environment(WAYBILL_URL=uri),
        stderr=subprocess.DEVNULL,
    )
    try:
        yield server
    finally:
        server.terminate()
        server.wait(30)


async def test_each_forked_worker_pushes_and_waits_over_a_connection_of_its_own() -> None:
    port = free_port()
    with TestBroker() as broker, gunicorn(port, broker.uri()) as server:
        await until(lambda: len(broker.jobs("web")) == 1)
        here = Jobs(broker.uri())
        here.handlers.update(gunicorn_program.jobs.handlers)
        async with Worker(here, coordinator=True):
            await asyncio.to_thread(ask_when_it_listens, port, server)
            asked = (asyncio.to_thread(ask, port, f"/{number}") for number in range(24))
            answers = [one.split(" ", 1) for one in await asyncio.gather(*asked)]
    assert [text for _, text in answers] == [f"hello {number}" for number in range(24)]
    assert str(server.pid) not in {pid for pid, _ in answers}
