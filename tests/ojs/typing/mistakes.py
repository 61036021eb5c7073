"""Calls that a type checker must accept or refuse: each line with that comment is one mistake.

Read by mypy and pyright in `test_typed_push.py`, and never run.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

from waybill.ojs import (
    Job,
    Jobs,
    NewJob,
    Retry,
    Step,
    SyncJob,
    SyncWorkflow,
    Workflow,
    WorkflowHandle,
    batch,
    chain,
    chord,
    group,
    parent_result,
    parent_results,
)

jobs = Jobs("amqp://localhost")


@jobs.handler("email.send", queue="email", retry=Retry(max_attempts=5))
async def send_email(to: str, subject: str = "", *, copies: int = 1) -> int:
    return copies


@jobs.handler("report.make")
def make_report(rows: list[int]) -> None: ...


@dataclass
class Address:
    street: str


@jobs.handler("parcel.send")
async def send_parcel(to: Address, when: datetime, *, weights: list[Decimal] | None = None, key: UUID) -> Address:
    return to


class Money:
    @staticmethod
    def parse(text: str) -> "Money":
        return Money()


jobs.codec(Money, encode=str, decode=Money.parse)
jobs.codec("Money", encode=str, decode=Money.parse)  # wrong


async def right_types(when: datetime, key: UUID) -> None:
    await send_parcel.push(Address("High Street"), when, key=key)
    await send_parcel.push(to=Address("High Street"), when=when, weights=[Decimal(1)], key=key)


async def wrong_types(when: datetime, key: UUID) -> None:
    await send_parcel.push(Address("High Street"), when)  # wrong
    await send_parcel.push({"street": "High Street"}, when, key=key)  # wrong
    await send_parcel.push(Address("High Street"), "tomorrow", key=key)  # wrong
    await send_parcel.push(Address("High Street"), when, key="k")  # wrong
    await send_parcel.push(Address("High Street"), when, weights=[1.5], key=key)  # wrong
    await send_parcel.push(Address("High Street"), when, [Decimal(1)], key=key)  # wrong


async def right() -> list[NewJob]:
    await send_email.push("a@example.com")
    await send_email.push("a@example.com", subject="Hello")
    await send_email.options(delay=timedelta(hours=1), priority=5).push("a@example.com", "Hello")
    await make_report.push(rows=[1, 2])
    sent: Job[int] = await send_email.push("a@example.com")
    made: Job[None] = await make_report.options(priority=1).push([1])
    known: Job[int] = jobs.job(sent.id or made.id)
    assert known.envelope.args
    count: int = await send_email("a@example.com")
    asked: SyncJob[int] = send_email.push_sync("a@example.com", subject="Hello")
    listed: SyncJob[None] = make_report.options(priority=1).push_sync(rows=[1])
    with jobs.sync.pipeline() as pipeline:
        pipeline.push(send_email.job(asked.id, listed.queue))
    return [make_report.job([count]), send_email.job("a@example.com", subject="x")]


async def wrong() -> None:
    await send_email.push()  # wrong
    await send_email.push(1)  # wrong
    await send_email.push("a@example.com", topic="Hello")  # wrong
    await send_email.push("a@example.com", subject=3)  # wrong
    await send_email.options(priority="high").push("a@example.com")  # wrong
    await send_email.options(colour="red").push("a@example.com")  # wrong
    await send_email.options(delay=timedelta(1)).push(b"a@example.com")  # wrong
    await make_report.push(["1"])  # wrong
    make_report.job()  # wrong
    await jobs.push("report.make", [[1]], retry=3)  # wrong
    jobs.handler("x.y", queue=1)  # wrong
    job = await make_report.push([1])
    job.identifier  # wrong  # noqa: B018 - the mistake
    _text: Job[str] = await send_email.push("a@example.com")  # wrong
    _later: Job[str] = await send_email.options(priority=1).push("a@example.com")  # wrong
    send_email.push_sync()  # wrong
    send_email.push_sync("a@example.com", subject=3)  # wrong
    make_report.options(priority=1).push_sync(["1"])  # wrong
    _number: SyncJob[str] = send_email.push_sync("a@example.com")  # wrong
    jobs.sync.push("report.make", [[1]], retry=3)  # wrong
    await make_report.push_sync([1])  # wrong
    with jobs.sync.pipeline() as pipeline:
        pipeline.push(make_report)  # wrong


@jobs.cron("0 9 * * MON-FRI", tz="Europe/Berlin", overlap="skip", args=["a@example.com"])
@jobs.cron(every=timedelta(hours=1), missed="all", jitter=5, name="hourly")
@jobs.handler("cron.mail")
async def mail_often(to: str = "") -> int:
    return 1


@jobs.cron("@daily", job_type="cron.clean", queue="low")
def clean(depth: int = 1) -> None: ...


async def right_cron() -> None:
    sent: Job[int] = await mail_often.push("a@example.com")
    cleaned: Job[None] = await clean.push(depth=2)
    outcomes: dict[str, str] = await jobs.crons.sync(prune=True)
    next_run: str | None = (await jobs.crons.get(sent.id + cleaned.id + outcomes[""])).next_run_at
    assert next_run


async def wrong_cron() -> None:
    jobs.cron(5)  # wrong
    jobs.cron("@daily", overlap="never")  # wrong
    jobs.cron("@daily", every=3600)  # wrong
    jobs.cron("@daily", colour="red")  # wrong
    await mail_often.push(5)  # wrong
    await clean.push(depth="2")  # wrong
    await jobs.crons.run(5)  # wrong


async def right_workflows() -> None:
    mail = send_email.job("a@example.com")
    last: WorkflowHandle[int] = await chain(make_report.job([1]), mail).push(jobs)
    count: int = await last.result(timeout=5)
    counts: list[int] = await (await group(mail, mail).push(jobs)).result()
    streamed: WorkflowHandle[list[int]] = await group(send_email.job(str(one)) for one in range(count)).push(jobs)
    added: WorkflowHandle[None] = await chord([mail], make_report.job(counts)).push(jobs)
    called: WorkflowHandle[list[int | None]] = await batch([mail], on_failure=make_report.job([1])).push(jobs)
    graph = Workflow("graph")
    step: Step[int] = graph.step("mail", mail)
    graph.step("all", group(mail), depends_on=[step, "mail"])
    blocking: SyncWorkflow[int] = chain(make_report.job([1]), mail).push_sync(jobs)
    state: str = jobs.sync.workflow(blocking.id).state() + jobs.sync.crons.pause("x", by=None).status
    added_up: int = blocking.result(timeout=5) + len(state)
    result: int = parent_result(send_email) + added_up
    results: list[int] = parent_results(send_email, "mail")
    _used = streamed, added, called, result, results


async def wrong_workflows() -> None:
    mail = send_email.job("a@example.com")
    chain(make_report.job(["1"]), mail)  # wrong
    chain(mail, 5)  # wrong
    _text: WorkflowHandle[str] = await chain(make_report.job([1]), mail).push(jobs)  # wrong
    _one: WorkflowHandle[int] = await group([mail]).push(jobs)  # wrong
    await chain(mail).push("amqp://localhost")  # wrong
    batch([mail], on_sucess=mail)  # wrong
    Workflow("x").step("a", mail, depends_on=[5])  # wrong
    _result: str = parent_result(send_email)  # wrong
    await chain(mail).push(jobs, expires=5)  # wrong
    _blocking: SyncWorkflow[str] = chain(mail).push_sync(jobs)  # wrong
    jobs.sync.crons.pause(5)  # wrong
