"""Stop the command, our broker or RabbitMQ for seconds while jobs move: connections end, and nothing comes twice.

The command has a heartbeat of a second, so a pause ends its connections: on its side, on the other, or on both. What it
has sent before may lie unread in the socket of a broker that was stopped, and is read beside the next connection.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Final

from tests.broker.process import BrokerProcess
from tests.rabbitmq import RabbitMQ
from tests.soak.move.one_way import Mover, Place, Plan
from tests.soak.move.there_and_back import there_and_back
from waybill.ojs.topology.topology import QueueType

OPTIONS: Final = "?heartbeat=1&connection_timeout=1000"
SHORT_S: Final = 0.2
LONG_S: Final = 5.0
"""A connection ends after two heartbeats without a frame."""


async def soak_pauses(
    directory: Path, pauses: int, jobs: int, chance: random.Random, log: Path, partitions: int
) -> None:
    """Move to one node of RabbitMQ and back, with queues of both types. Raises WrongError."""
    queue_types: dict[str, QueueType] = {"/ojs": "classic", "/": "quorum"}
    with RabbitMQ() as rabbitmq:
        for virtual_host, queue_type in queue_types.items():
            room = directory / queue_type
            room.mkdir()
            with BrokerProcess(room) as broker:

                async def pause(mover: Mover, number: int, broker: BrokerProcess = broker) -> None:
                    pid = (mover.process.pid, broker.process.pid, rabbitmq.pid)[number % 3]
                    os.kill(pid, signal.SIGSTOP)
                    try:
                        await asyncio.sleep(chance.uniform(SHORT_S, LONG_S))
                    finally:
                        os.kill(pid, signal.SIGCONT)

                here = Place(
                    f"amqp://guest:guest@127.0.0.1:{broker.port}/%2Fojs", options=OPTIONS, event_partitions=partitions
                )
                uri = rabbitmq.uri(virtual_host)
                there = Place(uri, queue_type, options=OPTIONS, event_partitions=partitions)
                await there_and_back("RabbitMQ", here, there, Plan(jobs, pauses, chance, log, pause, "pauses"))
