"""A move from one broker to another, and back."""

from __future__ import annotations

import random
from pathlib import Path

import click

from tests.soak.move.one_way import Place, one_way


async def there_and_back(
    name: str, here: Place, there: Place, kills: int, jobs: int, chance: random.Random, log: Path
) -> None:
    """Kill the command `kills` times each way. Raises WrongError."""
    await one_way(here, there, range(jobs), kills, chance, log)
    click.echo(f"into {there.queue_type} queues of {name}: {jobs} jobs once and in order, {kills} kills")
    await one_way(there, here, range(jobs, 2 * jobs), kills, chance, log)
    order = " and in order" if there.queue_type == "classic" else ""
    click.echo(f"back from {there.queue_type} queues: {jobs} jobs once{order}, {kills} kills")
