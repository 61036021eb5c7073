"""Rounds of a soak: traffic, a kill -9 at a random moment, a start, a look at everything."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from tests.broker.process import BrokerProcess
from tests.soak.ledger import BrokenPromiseError, Figures
from tests.soak.traffic import Clients

END_TIMEOUT_S: Final = 30.0


async def soak(
    directory: Path, seed: int, rounds: int, longest_s: float, after_round: Callable[[Figures], None]
) -> Figures:
    """Run so many rounds of at most `longest_s` seconds of traffic each. Raises `BrokenPromiseError`.

    `directory` then has the data as it was found after the kill, in `killed`.
    """
    random = Random(seed)
    with BrokerProcess(directory) as broker:
        clients = Clients(broker.uri(), random)
        await clients.declare()
        await clients.fill()
        for _ in range(rounds):
            tasks = clients.traffic()
            await asyncio.sleep(random.uniform(0.05, 1.0) * longest_s)
            broker.kill()
            await _end(tasks)
            shutil.rmtree(directory / "killed", ignore_errors=True)
            shutil.copytree(directory / "data", directory / "killed", ignore=shutil.ignore_patterns("control"))
            broker.start()
            await clients.look()
            clients.figures.rounds += 1
            after_round(clients.figures)
        return clients.figures


async def _end(tasks: list["asyncio.Task[None]"]) -> None:
    """Let the clients notice that the broker is gone. What goes wrong for any other reason is raised."""
    done, pending = await asyncio.wait(tasks, timeout=END_TIMEOUT_S)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()
    if pending:
        raise BrokenPromiseError(f"clients did not notice the end of the broker: {pending}")
