"""A move from one broker to another, and back."""

from __future__ import annotations

import click

from tests.soak.move.one_way import Place, Plan, one_way


async def there_and_back(name: str, here: Place, there: Place, plan: Plan) -> None:
    """Move to another broker and back, disturbed each way. Raises WrongError."""
    done = f"{plan.count} {plan.what}"
    await one_way(here, there, 0, plan)
    click.echo(f"into {there.queue_type} queues of {name}: {plan.jobs} jobs once and in order, {done}")
    await one_way(there, here, plan.jobs, plan)
    order = " and in order" if there.queue_type == "classic" else ""
    click.echo(f"back from {there.queue_type} queues: {plan.jobs} jobs once{order}, {done}")
