"""Definitions for tests, and a runner that ends jobs in any order."""

import random
from collections.abc import Callable

import msgspec

from waybill.ojs.workflow.definition import Definition
from waybill.ojs.workflow.flow import Flow
from waybill.ojs.workflow.members import Members
from waybill.ojs.workflow.numbering import new_workflow_id
from waybill.ojs.workflow.plan import Plan
from waybill.ojs.workflow.progress import Progress, StepError

TIME = "2026-01-01T00:00:00.000Z"


def job(job_type: str = "test.job", *, name: str = "", after: tuple[str, ...] = ()) -> Definition:
    envelope: dict[str, object] = {"type": job_type, "queue": "q", "args": []}
    return Definition("job", name=name, job=envelope, depends_on=list(after))


def chain(*steps: Definition, **more: object) -> Definition:
    return Definition("chain", steps=list(steps), **more)  # type: ignore[arg-type]


def group(*steps: Definition, **more: object) -> Definition:
    return Definition("group", steps=list(steps), **more)  # type: ignore[arg-type]


def batch(*steps: Definition, callbacks: tuple[str, ...], **more: object) -> Definition:
    return Definition("batch", steps=list(steps), callbacks={one: job(f"test.{one}") for one in callbacks}, **more)  # type: ignore[arg-type]


def dag(**needs: tuple[str, ...]) -> Definition:
    return Definition("dag", steps=[job(name=name, after=after) for name, after in needs.items()])


def flow_of(definition: Definition) -> Flow:
    return Flow(Plan(definition), Progress(new_workflow_id(), "test", TIME))


def names(flow: Flow) -> list[str]:
    """The jobs that may start."""
    return [flow.plan[number].path for number in flow.ready]


def end(flow: Flow, path: str, *, fails: bool = False, result: object = None) -> None:
    """End the job of a step, in its present run."""
    number = next(node.number for node in flow.plan.nodes if node.path == path)
    run = flow.progress.runs.get(number, 0)
    outcome = StepError(flow.job_id(number), "HANDLER_ERROR", "no") if fails else msgspec.json.encode(result)
    flow.ended(number, run, TIME, 1, outcome)


def reloaded(flow: Flow) -> Flow:
    """The workflow as another coordinator finds it in a store."""
    progress = msgspec.json.decode(msgspec.json.encode(flow.progress), type=Progress)
    return Flow(flow.plan, progress, Members(progress.members, flow.members.changed.get))


def run_to_end(flow: Flow, fails: Callable[[str], bool], chance: random.Random) -> list[str]:
    """Do what is ready in any order until nothing is; return the jobs in the order of their ends."""
    order = []
    while flow.ready:
        number = chance.choice(flow.ready)
        path, run = flow.plan[number].path, flow.progress.runs.get(number, 0)
        for step in chance.choices(["enqueued", "started", "ended"], k=3):
            if step == "enqueued":
                flow.enqueued(number, run)
            elif step == "started":
                flow.started(number, run, TIME, 1)
            else:
                break
        failed = fails(path)
        outcome = StepError(flow.job_id(number), "HANDLER_ERROR", "no") if failed else b"1"
        for _ in range(chance.choice([1, 2])):
            flow.ended(number, run, TIME, 2, outcome)
        order.append(path)
    return order
