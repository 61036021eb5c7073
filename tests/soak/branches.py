"""Clients of AMQP 0-10 in a soak: they move messages in branches of distributed transactions, and decide on those.

A branch takes messages from one queue and publishes them to another. It is prepared, and decided on a little later, so
that a kill finds branches in doubt. Afterwards their coordinator asks for these and decides.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random
from typing import Final
from urllib.parse import urlsplit

from tests.engine.amqp010.strict import StrictClient, StrictSession
from tests.soak.ledger import BranchLedger, Figures, promise
from waybill.wire.amqp010.class_connection import (
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from waybill.wire.amqp010.class_dtx import (
    DtxCommit,
    DtxEnd,
    DtxPrepare,
    DtxRecover,
    DtxRollback,
    DtxSelect,
    DtxStart,
    RecoverResult,
    XaResult,
    Xid,
)
from waybill.wire.amqp010.class_message import MessageAccept, MessageFlow, MessageSetFlowMode, MessageSubscribe
from waybill.wire.amqp010.class_session import SessionCommandPoint
from waybill.wire.amqp010.constants import FLOW_CREDIT, UNIT_BYTE, UNIT_MESSAGE, XA_OK
from waybill.wire.amqp010.struct import Command, Control

BRANCH_SOURCE: Final = "soak.dtx.source"
BRANCH_TARGET: Final = "soak.dtx.target"
READ_BYTES: Final = 1 << 16
PERSISTENT: Final = 2
PREPARED_MAX: Final = 5
PLAIN_GUEST: Final = b"\0guest\0guest"


class Connection:
    """One connection with one session. What it asks for is answered before the call returns, or it is lost."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: bytes) -> None:
        self._reader = reader
        self._writer = writer
        self._client = StrictClient()
        self.session = StrictSession(name)

    async def open(self) -> None:
        client = self._client
        client.start()
        await self._control(ConnectionStart)
        client.control(ConnectionStartOk({}, "PLAIN", PLAIN_GUEST, "en_US"))
        await self._control(ConnectionTune)
        client.control(ConnectionTuneOk(100, 65_535, 0))
        client.control(ConnectionOpen("/"))
        await self._control(ConnectionOpenOk)
        client.attach(self.session, 1)
        while not self.session.is_attached:
            await self._pump()
        self.session.control(SessionCommandPoint(0, 0))

    async def _control(self, kind: type[Control]) -> None:
        while not self._client.controls:
            await self._pump()
        control = self._client.controls.popleft()
        promise(isinstance(control, kind), f"{control} came instead of {kind.NAME}")

    async def _pump(self) -> None:
        """Send what is to be sent, and take what comes next."""
        self._writer.write(self._client.take_output())
        octets = await self._reader.read(READ_BYTES)
        if not octets:
            raise ConnectionResetError
        self._client.receive(octets)

    async def call(self, command: Command) -> object:
        """The result of a command, None if it has none."""
        session = self.session
        number = session.send(command, sync=True)
        while number not in session.completed:
            await self._pump()
            promise(not session.exceptions, f"a correct client got an error: {session.exceptions}")
        return session.results.pop(number, None)

    async def ends(self, command: Command) -> None:
        result = await self.call(command)
        promise(isinstance(result, XaResult) and result.status == XA_OK, f"{command} ended with {result}")

    async def take(self, count: int) -> list[tuple[int, bytes]]:
        """So many messages: their ids and bodies."""
        session = self.session
        session.send(MessageFlow(BRANCH_SOURCE, UNIT_MESSAGE, count))
        while len(session.transfers) < count:
            await self._pump()
        found = [session.transfers.popleft() for _ in range(count)]
        session.complete(*[one.id for one in found])
        return [(one.id, one.body) for one in found]


@contextlib.asynccontextmanager
async def connected(uri: str, name: bytes) -> AsyncIterator[Connection]:
    """A connection; that it is lost ends the block in silence."""
    address = urlsplit(uri)
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            connection = Connection(reader, writer, name)
            await connection.open()
            yield connection
        finally:
            writer.close()


def _xid(number: int) -> Xid:
    return Xid(1, b"%d" % number, b"soak")


class BranchClients:
    """Those that work in branches, and the coordinator who decides on what a kill has left in doubt."""

    def __init__(self, uri: str, random: Random, figures: Figures) -> None:
        self.ledger = BranchLedger()
        self._uri = uri
        self._random = random
        self._figures = figures

    async def move(self, name: bytes) -> None:
        """Move messages in branches until the broker dies."""
        random, ledger = self._random, self.ledger
        prepared: list[int] = []
        async with connected(self._uri, name) as connection:
            await connection.call(DtxSelect())
            await connection.call(MessageSubscribe(BRANCH_SOURCE, BRANCH_SOURCE, 0, 0))
            connection.session.send(MessageSetFlowMode(BRANCH_SOURCE, FLOW_CREDIT))
            connection.session.send(MessageFlow(BRANCH_SOURCE, UNIT_BYTE, 0xFFFFFFFF))
            while True:
                if len(prepared) < PREPARED_MAX and random.random() < 0.5:
                    prepared.append(await self._prepare(connection))
                elif prepared:
                    number = prepared.pop(random.randrange(len(prepared)))
                    await self._decide(connection, number, commits=random.random() < 0.7)
                    self._figures.branches += ledger.states[number] == "committed"

    async def _prepare(self, connection: Connection) -> int:
        ledger, session = self.ledger, connection.session
        number = ledger.begin()
        await connection.ends(DtxStart(_xid(number)))
        for count, body in await connection.take(self._random.randint(1, 4)):
            session.publish(body, key=BRANCH_TARGET, delivery_mode=PERSISTENT)
            session.send(MessageAccept(((count, count),)))
            ledger.numbers[number].add(int(body))
        await connection.ends(DtxEnd(_xid(number)))
        ledger.states[number] = "preparing"
        await connection.ends(DtxPrepare(_xid(number)))
        ledger.states[number] = "prepared"
        return number

    async def _decide(self, connection: Connection, number: int, *, commits: bool) -> None:
        states = self.ledger.states
        states[number] = "committing" if commits else "rolling back"
        await connection.ends(DtxCommit(_xid(number)) if commits else DtxRollback(_xid(number)))
        states[number] = "committed" if commits else "rolled back"

    async def decide_all(self) -> None:
        """After a kill: what is in doubt is asked for and decided."""
        is_done = False
        async with connected(self._uri, b"coordinator") as connection:
            result = await connection.call(DtxRecover())
            assert isinstance(result, RecoverResult)
            in_doubt = [int(xid.global_id) for xid in result.in_doubt if isinstance(xid, Xid)]
            self._figures.in_doubt += len(in_doubt)
            self.ledger.recovered(in_doubt)
            for number in in_doubt:
                await self._decide(connection, number, commits=self._random.random() < 0.5)
            promise(await connection.call(DtxRecover()) == RecoverResult(()), "decided branches are in doubt")
            is_done = True
        promise(is_done, "the coordinator lost its connection")
