"""`waybill workflow`: list, show, cancel and retry workflows."""

from collections.abc import Awaitable, Callable

import click
import msgspec
from rich.table import Column, Table
from rich.tree import Tree

from waybill.cli.console import Console, plain
from waybill.cli.echo import echo
from waybill.cli.failure import ask
from waybill.cli.target import ID_WIDTH, Target, broker_options, json_option
from waybill.ojs import StepInfo, WorkflowHandle, WorkflowInfo, WorkflowNotCompleted
from waybill.ojs.workflow.handle import list_workflows

STATES = ("pending", "running", "completed", "failed", "cancelled", "compensating", "compensated")


@click.group()
def command() -> None:
    """List, show, cancel and retry workflows. A coordinator must run."""


@command.command(name="list")
@click.option("--state", type=click.Choice(STATES), help="Workflows in this state only.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000), help="Maximum number.")
@broker_options
@json_option
def list_workflow_infos(state: str | None, limit: int, target: Target, *, as_json: bool) -> None:
    """List workflows, newest first."""
    found = ask(target, _list(target, state, limit))
    if as_json:
        echo(msgspec.json.encode(found))
        return
    table = Table(Column("id", no_wrap=True, min_width=ID_WIDTH), "state", "type", "done", "failed", "name", box=None)
    for info in found:
        counts = info.metadata
        done = f"{counts.completed_count}/{counts.job_count}"
        table.add_row(info.id, info.state, info.type, done, str(counts.failed_count), info.name)
    Console().print(table)


@command.command()
@click.argument("workflow_id", metavar="ID")
@broker_options
@json_option
def show(workflow_id: str, target: Target, *, as_json: bool) -> None:
    """Show a workflow and its steps as a tree."""
    _print(ask(target, _with(target, workflow_id, lambda handle: handle.info())), as_json=as_json)


@command.command()
@click.argument("workflow_id", metavar="ID")
@broker_options
@json_option
def cancel(workflow_id: str, target: Target, *, as_json: bool) -> None:
    """Cancel a workflow: no more jobs start. Running jobs finish."""
    _print(ask(target, _with(target, workflow_id, lambda handle: handle.cancel())), as_json=as_json)


@command.command()
@click.argument("workflow_id", metavar="ID")
@broker_options
@json_option
def retry(workflow_id: str, target: Target, *, as_json: bool) -> None:
    """Retry the failed jobs of a workflow and continue it. Completed jobs do not run again."""
    _print(ask(target, _with(target, workflow_id, lambda handle: handle.retry())), as_json=as_json)


async def _list(target: Target, state: str | None, limit: int) -> list[WorkflowInfo]:
    async with target.jobs() as jobs:
        return await list_workflows(jobs, state=state, limit=limit)


async def _with(
    target: Target, workflow_id: str, act: Callable[[WorkflowHandle[object]], Awaitable[WorkflowInfo]]
) -> WorkflowInfo:
    async with target.jobs() as jobs:
        try:
            return await act(WorkflowHandle(jobs, workflow_id))
        except (LookupError, WorkflowNotCompleted) as error:
            raise click.ClickException(str(error)) from None


def _print(info: WorkflowInfo, *, as_json: bool) -> None:
    if as_json:
        echo(msgspec.json.encode(info))
        return
    counts = info.metadata
    tree = Tree(f"{info.type} {info.id} {info.state}: {counts.completed_count} of {counts.job_count} jobs done")
    for step in info.steps:
        _add(tree, step)
    Console(highlight=False, soft_wrap=True).print(tree, markup=False)
    for error in info.errors[:10]:
        echo(plain(f"{error.step or 'workflow'}: {error.message} ({error.code})"), err=True)


def _add(tree: Tree, step: StepInfo) -> None:
    parts = [step.id if step.id != str(step.index) else str(step.index), step.type, step.state]
    if step.depends_on:
        parts.append(f"after {', '.join(step.depends_on)}")
    if step.completed_count is not None:
        total = "?" if step.job_count is None else step.job_count
        parts.append(f"{step.completed_count} of {total} done, {step.failed_count or 0} failed")
    if step.spawned:
        parts.append(f"spawned {', '.join(step.spawned)}")
    branch = tree.add(" ".join(parts))
    for one in step.steps:
        _add(branch, one)
    if step.omitted_count:
        branch.add(f"... {step.omitted_count} more")
