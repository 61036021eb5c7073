"""The parts of `make cluster` that need no cluster: the worker's program, on our broker, and what is asked besides."""

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.client.breaking import until
from tests.soak.cluster.house import ClusterHouse
from tests.soak.cluster.nodes import Cluster
from tests.soak.cluster.programs import SCHEMA, make_cluster_jobs
from tests.soak.cluster.run import ClusterRun
from tests.soak.jobs.programs import open_effects
from tests.soak.jobs.run import JobLostError
from waybill.broker import Broker
from waybill.client.uri import parse_uri
from waybill.ojs import Coordinator, Worker, chain

QUEUE = "soak"


def done(directory: Path, what: str) -> Sequence[tuple[str]]:
    with closing(sqlite3.connect(next(directory.glob("effects-*.sqlite")))) as connection:
        return connection.execute("select subject from done where what = ? order by subject", (what,)).fetchall()


async def test_steps_and_ticks_leave_their_marks(tmp_path: Path) -> None:
    effects = open_effects(str(tmp_path))
    effects.execute(SCHEMA)
    with closing(effects):
        async with Broker(port=0) as broker:
            jobs = make_cluster_jobs(f"amqp://guest:guest@127.0.0.1:{broker.port}/%2Fojs", QUEUE, effects)
            async with jobs, Coordinator(jobs, queues=[QUEUE]), Worker(jobs, queues=[QUEUE]):
                step = jobs.handlers["soak.step"]
                await (await chain(step.job(1, 0), step.job(1, 1)).push(jobs)).wait(timeout=30)
                await until(lambda: bool(done(tmp_path, "tick")), 30)
        assert done(tmp_path, "step") == [("1.0",), ("1.1",)]


def test_clients_know_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.rabbitmq.installed", lambda: True)
    cluster = Cluster()
    try:
        address = parse_uri(cluster.uri("/ojs"))
        assert [node.host for node in address.nodes] == ["10.213.1.2", "10.213.2.2", "10.213.3.2"]
    finally:
        cluster.close()


def mark(directory: Path, *rows: tuple[str, str, str]) -> None:
    with closing(sqlite3.connect(directory / "effects-1.sqlite")) as connection, connection:
        connection.execute(SCHEMA)
        connection.executemany("insert into done values (?, ?, ?)", rows)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([("step", "0.0", "a"), ("step", "0.0", "b")], "step 0.0 was done by 2 jobs"),
        ([("step", "0.0", "a")], "1 steps of chains were done, 0 were pushed"),
        (
            [("tick", "2026-01-01T00:00:00Z", "a"), ("tick", "2026-01-01T00:00:10Z", "b")],
            "no tick between 2026-01-01 00:00:00",
        ),
        ([("tick", "2026-01-01T00:00:00Z", "a")], "0 ticks have fired, 1 were done"),
    ],
)
def test_what_is_done_twice_or_not_at_all_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[tuple[str, str, str]], complaint: str
) -> None:
    monkeypatch.setattr("tests.rabbitmq.installed", lambda: True)
    house = ClusterHouse(tmp_path, 1, random.Random(1))
    try:
        mark(tmp_path, *rows)
        with pytest.raises(JobLostError, match=complaint):
            ClusterRun(house, tmp_path, 1, random.Random(1)).check_besides()
    finally:
        house.close()
