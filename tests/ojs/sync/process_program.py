"""A program whose handler pushes from a process: a child imports it, and knows no more of the broker than it says."""

from waybill.ojs import Jobs

jobs = Jobs("amqp://127.0.0.1:1/nobody-listens")
names: list[str] = []


@jobs.handler("process.child", queue="process-child")
async def child(name: str) -> None:
    names.append(name)


@jobs.handler("process.parent", queue="process-child", process=True)
def parent(name: str) -> str:
    return child.push_sync(name).id
