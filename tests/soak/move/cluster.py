"""The move into a cluster of three nodes and back: every queue and stream there has three replicas."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.program_environment import program_environment
from tests.soak.cluster.nodes import COUNT, Cluster, run
from tests.soak.move.one_way import Place, Plan
from tests.soak.move.there_and_back import there_and_back
from waybill.broker import Broker

CONTEXT: Final = "cluster"
TICK_S: Final = 60
"""No node or client is to be taken for gone, however busy the machine is: a move promises nothing while nodes stop."""


async def soak_cluster(
    directory: Path, kills: int, jobs: int, chance: random.Random, log: Path, partitions: int
) -> None:
    """Needs root and a network of its own (`unshare --net`). Raises WrongError."""
    run("ip", "link", "set", "lo", "up")
    cluster = Cluster(TICK_S)
    with closing(cluster):
        cluster.start()
        uri = cluster.uri("/ojs", heartbeat_s=TICK_S)
        there = Place(uri, "quorum", replicas=COUNT, context=CONTEXT, event_partitions=partitions)
        add_context(directory, there)
        try:
            async with Broker(port=0, data_dir=directory / "one-node") as broker:
                here = Place(broker.uri(), event_partitions=partitions)
                await there_and_back("a cluster", here, there, Plan(jobs, kills, chance, log))
        finally:
            cluster.keep_logs(directory)


def add_context(directory: Path, there: Place) -> None:
    """Let commands know the cluster by a name, with what is declared in it."""
    os.environ["XDG_CONFIG_HOME"] = str(directory / "settings")
    placement = ("--queue-type", "quorum", "--replicas", str(COUNT), "--leader-locator", "balanced")
    partitions = ("--event-partitions", str(there.event_partitions))
    subprocess.run(
        [sys.executable, "-m", "waybill", "context", "add", CONTEXT, there.uri, *placement, *partitions],
        env=program_environment(),
        check=True,
        stdout=subprocess.DEVNULL,
    )
