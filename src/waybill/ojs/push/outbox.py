"""An outbox: jobs that are enqueued if, and only if, the transaction that adds them commits.

    outbox = Outbox(jobs)
    outbox.metadata.create_all(engine)              # or a migration: two tables

    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.add(session, send_receipt.job(order.id))     # an AsyncSession does as well

    async with OutboxRelay(outbox, engine): ...     # in any process: publishes what was committed

A relay publishes rows in order, with confirms, and removes a row when the broker has its job. A crash in between
publishes it again with the same id (at least once). Needs the package sqlalchemy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from waybill.client import ClientError
from waybill.client.service import Service
from waybill.ojs.client import Jobs
from waybill.ojs.errors import PushFailed
from waybill.ojs.handler import NewJob
from waybill.ojs.push.outbox_rows import BATCH, OutboxPublisher, row_of
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.identifiers import new_id

try:
    import sqlalchemy as sql
    from sqlalchemy.engine import Connection, CursorResult, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.orm import Session, registry
except ImportError as error:
    raise ImportError("the outbox needs the package sqlalchemy: pip install 'waybill-amqp[state]'") from error

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

POLL_SECONDS: Final = 0.2
LEASE_SECONDS: Final = 30.0
ERROR_PAUSE_SECONDS: Final = 1.0
_RELAY: Final = "relay"

T = TypeVar("T")

_log = logging.getLogger("waybill.ojs.outbox")


class _OutboxRow:
    """A row, held by the session until it flushes."""

    def __init__(self, job_id: str, envelope: str, options: str) -> None:
        self.job_id = job_id
        self.envelope = envelope
        self.options = options


class Outbox:
    """Two tables: the jobs that wait for a relay, and the lease of the active relay."""

    def __init__(self, jobs: Jobs, *, metadata: sql.MetaData | None = None, table: str = "waybill_outbox") -> None:
        """`metadata` is the application's, so that its migrations know the tables; by default a new one."""
        self.jobs = jobs
        self.metadata = metadata or sql.MetaData()
        self.table = sql.Table(
            table,
            self.metadata,
            sql.Column("id", sql.BigInteger().with_variant(sql.Integer, "sqlite"), primary_key=True),
            sql.Column("job_id", sql.String(36), nullable=False),
            sql.Column("envelope", sql.Text, nullable=False),
            sql.Column("options", sql.Text, nullable=False),
            sql.Column("error", sql.Text),
            # A freed number must not be reused: numbers define the order.
            sqlite_autoincrement=True,
        )
        self.lease = sql.Table(
            f"{table}_relay",
            self.metadata,
            sql.Column("name", sql.String(20), primary_key=True),
            sql.Column("owner", sql.String(36), nullable=False),
            sql.Column("until", sql.Float, nullable=False),
        )
        # A separate class for each outbox, because a class can be mapped to only one table.
        self._row = type("OutboxRow", (_OutboxRow,), {})
        registry(metadata=self.metadata).map_imperatively(self._row, self.table)

    def add(self, session: Session | AsyncSession | Connection, job: NewJob | Envelope | dict[str, object]) -> Envelope:
        """Enqueue a job with the transaction of `session`; it is sent after a relay sees it committed.

        Returns the job with its id. Raises InvalidJob naming the field. The envelope is stored unchanged: middleware
        that encrypts arguments does so when the relay publishes.
        """
        made = self.jobs.make(job)
        row = self._row(*row_of(made))
        if isinstance(session, Connection):
            values = {"job_id": row.job_id, "envelope": row.envelope, "options": row.options}
            session.execute(sql.insert(self.table).values(values))
        else:
            session.add(row)
        return made.envelope


class OutboxRelay(Service):
    """Publishes the jobs of committed transactions. Any number may run; one at a time is active."""

    def __init__(self, outbox: Outbox, engine: Engine | AsyncEngine) -> None:
        """`engine` is the application's, synchronous or asynchronous: a synchronous one is used in threads."""
        self.published_count = 0
        self._outbox = outbox
        self._engine = engine
        self._id = new_id()
        # One thread, so that started work is done before a stopping relay gives up its lease.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="waybill-outbox")
        self._task: asyncio.Task[None] | None = None
        self._publisher = OutboxPublisher()

    async def start(self) -> None:
        await self._with_connection(self._prepare)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop, and let another relay take over immediately."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(sql.exc.SQLAlchemyError):
            await self._with_connection(self._resign)

    async def run(self) -> None:
        """Publish until cancelled."""
        async with self:
            if self._task is not None:
                await self._task

    async def publish_batch(self) -> int:
        """Publish up to BATCH rows and return how many are done; 0 also if another relay is active.

        Raises database errors, or PushFailed if the broker accepted none.
        """
        if not await self._with_connection(self._take_turn):
            return 0
        rows = await self._with_connection(self._read)
        if not rows:
            self._publisher.begin_again()
            return 0
        done, errors = await self._publisher.publish(rows, self._outbox.jobs.push_many)
        await self._with_connection(lambda connection: self._settle(connection, done, errors))
        self.published_count += len(done)
        return len(done) + len(errors)

    async def _run(self) -> None:
        while True:
            try:
                pause = 0.0 if await self.publish_batch() else POLL_SECONDS
            except (sql.exc.SQLAlchemyError, PushFailed, ClientError, OSError) as error:
                _log.warning("the outbox is delayed, trying again: %r", error)
                pause = ERROR_PAUSE_SECONDS
            except Exception:  # noqa: BLE001 - whatever a middleware can raise; the jobs stay where they are
                _log.exception("the outbox is delayed, trying again")
                pause = ERROR_PAUSE_SECONDS
            await asyncio.sleep(pause)

    # --- database ---

    async def _with_connection(self, work: Callable[[Connection], T]) -> T:
        """Run a function in a transaction, with either kind of engine."""
        if isinstance(self._engine, AsyncEngine):
            async with self._engine.begin() as connection:
                return await connection.run_sync(work)
        engine = self._engine

        def in_thread() -> T:
            with engine.begin() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._thread, in_thread)

    def _prepare(self, connection: Connection) -> None:
        """Create the row of the lease. If two relays do so concurrently, the second one is refused."""
        lease = self._outbox.lease
        if connection.execute(sql.select(lease.c.name)).first() is None:
            with contextlib.suppress(sql.exc.IntegrityError), connection.begin_nested():
                connection.execute(sql.insert(lease).values(name=_RELAY, owner="", until=0.0))

    def _take_turn(self, connection: Connection) -> bool:
        lease, now = self._outbox.lease, time.time()
        update = (
            sql.update(lease)
            .where(lease.c.name == _RELAY, sql.or_(lease.c.owner == self._id, lease.c.until < now))
            .values(owner=self._id, until=now + LEASE_SECONDS)
        )
        return _row_count(connection.execute(update)) == 1

    def _resign(self, connection: Connection) -> None:
        lease = self._outbox.lease
        connection.execute(sql.update(lease).where(lease.c.owner == self._id).values(until=0.0))

    def _read(self, connection: Connection) -> list[tuple[int, str, str]]:
        table = self._outbox.table
        select = sql.select(table.c.id, table.c.envelope, table.c.options)
        select = select.where(table.c.error.is_(None), table.c.id > self._publisher.after)
        select = select.order_by(table.c.id).limit(BATCH)
        return [(number, envelope, options) for number, envelope, options in connection.execute(select)]

    def _settle(self, connection: Connection, done: list[int], errors: dict[int, str]) -> None:
        """Delete published rows; invalid ones are kept with the reason."""
        table = self._outbox.table
        if done:
            connection.execute(sql.delete(table).where(table.c.id.in_(done)))
        for number, text in errors.items():
            connection.execute(sql.update(table).where(table.c.id == number).values(error=text))


def _row_count(result: CursorResult[tuple[object, ...]] | object) -> int:
    return result.rowcount if isinstance(result, CursorResult) else 0
