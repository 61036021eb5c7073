"""A broker: a node behind a listener, on a disk or in memory."""

import asyncio
import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

from waybill import __version__
from waybill.broker.changes import Changes
from waybill.broker.commit_loop import CommitLoop
from waybill.broker.control import Control
from waybill.broker.departures import Departures
from waybill.broker.limits import change_limits
from waybill.broker.log import BrokerLog, logger
from waybill.node.administration import GUEST, Administration, FirstUser
from waybill.node.certificate import DISTINGUISHED_NAME, LOGIN_FROM
from waybill.node.definitions import (
    DefinitionImport,
    Document,
    ImportReport,
    export_definitions,
    import_definitions,
)
from waybill.node.node import DISK_FREE_LIMIT_BYTES, Filesystem, Node, NodeOptions
from waybill.transport.clock import Clock
from waybill.transport.disk import CommitThread, DirectoryLock, DiskFilesystem
from waybill.transport.listener import Admission, Listener
from waybill.transport.pump import Engine, Pump
from waybill.transport.ranges import PORTS, check_whole
from waybill.transport.tls import server_context

DEFAULT_PORT: Final = 5672
DEFAULT_TLS_PORT: Final = 5671
DEFAULT_MEMORY_LIMIT_BYTES: Final = 128 << 20
DEFAULT_MEMORY_LIMIT_WITHOUT_DISK_BYTES: Final = 1 << 30
MEMORY_LIMIT_MAX_BYTES: Final = 1 << 50
DRAIN_TIMEOUT_S: Final = 5.0
MAINTENANCE_INTERVAL_S: Final = 1.0
# How soon after the last commit the manifest records what is durable.
MARK_DELAY_S: Final = 0.25


class BrokerFailed(Exception):
    """The broker stopped because its store failed. `__cause__` is the error of its disk."""


class Broker:
    """An AMQP broker in this process and event loop.

        async with Broker(port=0, data_dir="data") as broker:
            print(broker.uri())

    Without `data_dir` everything is in memory, and lost when the process ends. `port` 0 takes a free one. Message
    content beyond `memory_limit_bytes` (default 128 MiB) waits on disk; without a disk, publishers must wait (default
    1 GiB). Leaving the block drains: the broker closes its connections, makes what they sent durable, and closes the
    store cleanly.

    With `tls_certificate` and `tls_key` (PEM files) it listens on `tls_port` as well. With `tls_ca` clients may show a
    certificate of that authority, and log in with it by EXTERNAL; `verify_peer` makes them show one.
    `certificate_login_from`: the part that is the user's name, "distinguished_name" or "common_name".

    `definitions` are imported at each start, before anybody can connect; `import_report` has the result. If they have
    users, a new broker has no guest. `users` are made on a new data directory, and there is no guest either. With less
    free space on the disk than `disk_free_limit_bytes`, publishers must wait. `limits` by name are those of
    docs/reference/configuration.md, without `limits.`. `strict_amqp10` enforces rules of AMQP 1.0 that RabbitMQ waives
    (docs/reference/amqp-1.0.md); `auto_create_queues` makes a queue for an address of AMQP 1.0 that names none. `clock`
    replaces the broker's clock, for tests. Raises ValueError for a setting out of range.
    """

    import_report: ImportReport | None = None
    _control: Control | None = None
    _tls_listener: Listener | None = None
    _maintenance: asyncio.TimerHandle | None = None
    _lock: DirectoryLock | None = None
    _disk: CommitThread | None = None
    _listener: Listener | None = None
    _failure: BaseException | None = None
    _is_working = False
    _stopping: asyncio.Task[None] | None = None

    def __init__(  # noqa: PLR0913 - one argument a setting, all by name
        self,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        data_dir: str | os.PathLike[str] | None = None,
        memory_limit_bytes: int | None = None,
        name: str = "waybill",
        tls_certificate: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        verify_peer: bool = False,
        tls_port: int = DEFAULT_TLS_PORT,
        certificate_login_from: str = DISTINGUISHED_NAME,
        definitions: Document | None = None,
        users: Sequence[FirstUser] = (),
        strict_amqp10: bool = False,
        auto_create_queues: bool = False,
        disk_free_limit_bytes: int = DISK_FREE_LIMIT_BYTES,
        limits: Mapping[str, float] | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_whole("port", port, *PORTS)
        check_whole("tls_port", tls_port, *PORTS)
        check_whole("memory_limit_bytes", memory_limit_bytes, 1, MEMORY_LIMIT_MAX_BYTES)
        check_whole("disk_free_limit_bytes", disk_free_limit_bytes, 0, MEMORY_LIMIT_MAX_BYTES)
        self._host = host
        self._port = port
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._memory_limit_bytes = memory_limit_bytes or self._default_memory_limit_bytes()
        self._clock = Clock() if clock is None else clock
        self._options = NodeOptions(name, __version__, os.urandom, self._memory_limit_bytes)
        self._log = BrokerLog(self._clock)
        self._options.operator_log = self._log
        if certificate_login_from not in LOGIN_FROM:
            raise ValueError(f"certificate_login_from is one of {', '.join(LOGIN_FROM)}")
        self._options.certificate_login_from = certificate_login_from
        self._options.limits.is_strict_amqp10 = strict_amqp10
        self._options.limits.auto_creates_queues = auto_create_queues
        change_limits(self._options.limits, limits or {})
        self._options.disk_free_limit_bytes = disk_free_limit_bytes
        self._options.first_users = list(users)
        self._tls = _tls_context(tls_certificate, tls_key, tls_ca, verify_peer=verify_peer)
        self._tls_port, self.tls_certificate = tls_port, tls_certificate
        self._definitions = definitions
        self._options.makes_guest = not (definitions and definitions.get("users"))
        self._idle = asyncio.Event()
        self._stopped = asyncio.Event()

    # --- life ---

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Recover, then listen. Raises OSError (address or directory in use), or errors of `waybill.storage`."""
        self._loop = asyncio.get_running_loop()
        try:
            self._node = Node.open(self._open_filesystem(), self._options, self._clock.now())
        except BaseException:
            self._release_lock()
            raise
        try:
            self._begin_work()
            await self._listen()
        except BaseException:
            self._abandon()
            raise

    def _begin_work(self) -> None:
        self._departures = Departures()
        self._disk = CommitThread(self._loop)
        self._commit_loop = CommitLoop(self._node, self._disk, self._clock, self._fail)
        self.changes = Changes(self._node, self._commit_loop, self._clock)
        if self._definitions is not None:
            self.import_report = import_definitions(self._node, self._definitions)
        self._commit_loop.work()
        self._is_working = True
        self._maintain()

    async def _listen(self) -> None:
        limits = self._options.limits
        self._admission = Admission(
            limits.connections_max + limits.handshakes_max,
            self._is_open,
            "limits.connections_max, or half of the descriptors, ulimit -n",
        )
        self._tls_admission = Admission(
            limits.tls_connections_max, self._is_open, "limits.tls_connections_max", self._admission
        )
        self._listener = Listener(self._make_pump, self._host, self._port, self._admission)
        await self._listener.start()
        self._log.info("listening", f"AMQP on {self.address}")
        if self._tls is not None:
            self._tls_listener = Listener(
                self._make_pump,
                self._host,
                self._tls_port,
                self._tls_admission,
                self._tls,
                handshake_timeout_s=limits.handshake_timeout_s,
            )
            await self._tls_listener.start()
            self._log.info("listening", f"AMQP with TLS on {self._host}:{self.tls_port}")

        if self._data_dir is not None:
            self._control = Control(self._node, self._data_dir, self._commit_loop.work)
            await self._control.start()

    def _abandon(self) -> None:
        """Release everything that a failed start has taken."""
        for listener in (self._listener, self._tls_listener):
            if listener is not None:
                listener.close()
        self._listener = self._tls_listener = None
        self._end_work()

    def _open_filesystem(self) -> Filesystem | None:
        """The disk of the store, locked against others; None to keep everything in memory."""
        if self._data_dir is None:
            return None
        self._data_dir.mkdir(parents=True, exist_ok=True)
        self._lock = DirectoryLock(self._data_dir)
        return DiskFilesystem(self._data_dir)

    async def stop(self) -> None:
        """Tell peers, let them finish, make everything durable. A second call does nothing.

        Raises OSError if the disk fails in the end.
        """
        if self._listener is None:
            return
        self._log.info("stopping", f"{len(self._node.connections)} connections are open")
        try:
            await self._say_goodbye()
        finally:
            self._end_work()
        self._log.info("stopped", "all that was confirmed is on disk" if self._data_dir else "nothing is stored")

    async def _say_goodbye(self) -> None:
        if self._listener is None:
            return
        self._listener.close()
        self._listener = None
        if self._control is not None:
            self._control.close()
        if self._tls_listener is not None:
            self._tls_listener.close()
            self._tls_port = self._tls_listener.port
            self._tls_listener = None
        if self._failure is None:
            self._node.shut_down()
            self._commit_loop.work()
            self._abort_all(but_open=True)
            self._check_idle()
            try:
                async with asyncio.timeout(DRAIN_TIMEOUT_S):
                    await self._idle.wait()
            except TimeoutError:
                logger.warning("%d connections did not close in time and were aborted", len(self._commit_loop.outputs))
            self._abort_all()
            await self._idle.wait()
            await self._admission.emptied()
            self._commit_loop.take()
            await self._commit_loop.settle()

    async def wait_stopped(self) -> None:
        """Wait until the broker has stopped. Raises `BrokerFailed` if its store failed."""
        await self._stopped.wait()
        if self._failure is not None:
            raise BrokerFailed(f"{_what_failed(self._failure)}: {self._failure}") from self._failure

    def _end_work(self) -> None:
        """Close everything, even if a step fails. `wait_stopped` returns in any case."""
        if self._maintenance is not None:
            self._maintenance.cancel()
        try:
            if self._disk is not None:
                self._commit_loop.stop()
                self.changes.stop()
                self._disk.close()
            if self._failure is None:
                # After an interrupted commit, or a failed start, leave the directory as a crash would.
                self._node.close(clean=self._is_working and not self._commit_loop.is_committing)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._stopped.set()
            self._release_lock()

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    # --- where it is ---

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        """The port that is bound."""
        return self._port if self._listener is None else self._listener.port

    @property
    def tls_port(self) -> int | None:
        """The port that is bound for TLS, None without a certificate."""
        if self._tls is None:
            return None
        return self._tls_port if self._tls_listener is None else self._tls_listener.port

    @property
    def address(self) -> str:
        """`host:port`, as a URI has it. Raises RuntimeError for port 0 before the start, which chooses a free one."""
        if self.port == 0:
            raise RuntimeError("the broker has no port yet: start it first")
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self.port}"

    def uri(self, virtual_host: str = "/", user: str = GUEST, password: str = GUEST) -> str:
        """An `amqp://` URI for a user, by default guest, from this machine. Raises RuntimeError like `address`."""
        login = f"{quote(user, safe='')}:{quote(password, safe='')}"
        return f"amqp://{login}@{self.address}/{quote(virtual_host, safe='')}"

    # --- administration ---

    @property
    def node(self) -> Node:
        """The node, to be read between its turns, and changed by `changes` only."""
        return self._node

    @property
    def commit_loop(self) -> CommitLoop:
        """The commit loop and its counters."""
        return self._commit_loop

    @property
    def is_serving(self) -> bool:
        """Whether clients can connect."""
        return self._listener is not None and self._failure is None

    @property
    def data_dir(self) -> Path | None:
        """The data directory; None for a broker in memory."""
        return self._data_dir

    @property
    def administration(self) -> Administration:
        """Users, permissions, virtual hosts, policies and limits of the running broker."""
        return self._node.administration

    def export_definitions(self) -> Document:
        """The broker's definitions, in the form of RabbitMQ's definition files, ready for a JSON encoder."""
        return export_definitions(self._node)

    async def import_definitions(self, document: Document) -> ImportReport:
        """Import a document in the form of RabbitMQ's definition files. Returns once it is durable."""
        importing = DefinitionImport(self._node, document)
        await self.changes.perform(lambda _node: importing)
        return importing.report

    # --- changes while it runs ---

    def reconfigure(
        self,
        *,
        memory_limit_bytes: int | None = None,
        disk_free_limit_bytes: int = DISK_FREE_LIMIT_BYTES,
        limits: Mapping[str, float] | None = None,
        strict_amqp10: bool = False,
        auto_create_queues: bool = False,
    ) -> None:
        """Change settings while it runs; they mean what they mean to `Broker`. Limits apply to new connections.

        Raises ValueError for one out of range, and changes nothing then.
        """
        check_whole("memory_limit_bytes", memory_limit_bytes, 1, MEMORY_LIMIT_MAX_BYTES)
        check_whole("disk_free_limit_bytes", disk_free_limit_bytes, 0, MEMORY_LIMIT_MAX_BYTES)
        ours = self._options.limits
        change_limits(ours, limits or {})
        ours.is_strict_amqp10 = strict_amqp10
        ours.auto_creates_queues = auto_create_queues
        self._admission.change_places(ours.connections_max + ours.handshakes_max)
        self._tls_admission.change_places(ours.tls_connections_max)
        self._memory_limit_bytes = memory_limit_bytes or self._default_memory_limit_bytes()
        self._node.change_alarms(self._memory_limit_bytes, disk_free_limit_bytes)
        self._commit_loop.work()

    def renew_certificate(self, certificate: str | os.PathLike[str], key: str | os.PathLike[str]) -> None:
        """Use another certificate for new TLS connections.

        Raises OSError if a file cannot be read or does not fit, and changes nothing then; ValueError without TLS.
        """
        if self._tls is None:
            raise ValueError("there is no TLS listener: restart with a certificate")
        server_context(Path(certificate), Path(key))
        self._tls.load_cert_chain(certificate, key)

    def _default_memory_limit_bytes(self) -> int:
        return DEFAULT_MEMORY_LIMIT_WITHOUT_DISK_BYTES if self._data_dir is None else DEFAULT_MEMORY_LIMIT_BYTES

    # --- connections ---

    def _make_pump(self) -> Pump[Engine]:
        return Pump(
            self._make_engine, self._clock, self._commit_loop.after_receive, self._on_lost, self._departures.add
        )

    def _make_engine(self, pump: Pump[Engine]) -> Engine:
        self._idle.clear()
        output = self._commit_loop.add(pump)
        try:
            return self._node.accept(output, output.peer_address, self._clock.now(), pump.peer_certificate)
        except Exception:
            del self._commit_loop.outputs[pump]
            self._check_idle()
            raise

    def _is_open(self, pump: Pump[Engine]) -> bool:
        """Whether the peer has logged in."""
        return pump in self._commit_loop.outputs and pump.engine in self._node.connections

    def _on_lost(self, pump: Pump[Engine], error: Exception | None) -> None:
        self._tls_admission.pump_lost(pump)
        self._admission.pump_lost(pump)
        output = self._commit_loop.outputs.pop(pump, None)
        if error is not None and output is not None:
            logger.debug("connection from %s lost: %s", output.peer_address, error)
        self._check_idle()

    def _check_idle(self) -> None:
        if not self._commit_loop.outputs:
            self._idle.set()

    def _abort_all(self, *, but_open: bool = False) -> None:
        """Abort connections. `but_open`: except those that have logged in, whose peers are notified first."""
        for pump in list(self._commit_loop.outputs):
            if not (but_open and self._is_open(pump)):
                pump.abort()

    # --- upkeep ---

    def _fail(self, error: BaseException) -> None:
        """The store has failed and the commit loop has ended: cut all connections and stop."""
        # An error of the disk needs no explanation. Any other is a bug, and needs its traceback.
        trace = None if isinstance(error, OSError) else error
        logger.critical("%s, the broker stops: %s", _what_failed(error), error, exc_info=trace)
        self._failure = error
        self._abort_all()
        self._stopping = self._loop.create_task(self.stop(), name="waybill broker stop")

    def _maintain(self) -> None:
        """Compact the store in small steps."""
        if self._failure is not None:
            return
        delay = MAINTENANCE_INTERVAL_S
        try:
            delay = self._maintain_now()
        except Exception as error:  # noqa: BLE001 - the next step may succeed
            self._log.fault("a fault in the broker", "a maintenance step failed; it will be retried", error)
        finally:
            self._maintenance = self._loop.call_later(delay, self._maintain)

    def _maintain_now(self) -> float:
        """Do a step. Returns the seconds until the next one."""
        delay = MARK_DELAY_S if self._node.is_unmarked else MAINTENANCE_INTERVAL_S
        if not self._commit_loop.is_committing and self._node.maintain(self._clock.now()):
            delay = 0.0
        self._commit_loop.work()
        self._log.report_suppressed()
        return delay


def _tls_context(
    certificate: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    authority: str | os.PathLike[str] | None,
    *,
    verify_peer: bool,
) -> ssl.SSLContext | None:
    """The TLS context, None without TLS. Raises ValueError if a setting needs another that is missing."""
    if certificate is None or key is None:
        if certificate is not None or key is not None or authority is not None or verify_peer:
            raise ValueError("TLS needs tls_certificate and tls_key")
        return None
    if verify_peer and authority is None:
        raise ValueError("verify_peer needs tls_ca, the authority of client certificates")
    return server_context(
        Path(certificate),
        Path(key),
        client_authority=None if authority is None else Path(authority),
        require_client=verify_peer,
    )


def _what_failed(error: BaseException) -> str:
    return "the disk failed" if isinstance(error, OSError) else "the store failed"
