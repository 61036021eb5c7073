"""The commit loop: handles all that connections have read in one round of the event loop as one batch.

    pumps read -> after_receive -> once a round: node works -> batch is written -> pumps write -> sync -> confirms

Every message passes through here, so this module is compiled like the core. `broker` is what runs only once.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from waybill.node.node import Commit, Node, ServerEngine
from waybill.transport.clock import Clock
from waybill.transport.disk import CommitThread
from waybill.transport.pump import Engine, Pump

# A small commit on a fast disk runs on the loop: another thread would cost more CPU, and the loop is blocked for less
# time than a large read takes.
INLINE_COMMIT_BYTES: Final = 16 << 10
# So does the writing of a larger one, which copies it to the page cache: the other thread would wait for the
# interpreter lock before and after it, each time as long as a turn takes.
INLINE_WRITE_BYTES: Final = 512 << 10
INLINE_SYNC_S: Final = 0.001
# A commit that takes longer may be waiting for the interpreter lock, not for the disk.
HURRY_AFTER_S: Final = 0.005
SYNC_SMOOTHING: Final = 0.1
# If more than this waits for the next commit, those who send much are read slowly; if more than that, nobody is read
# until the disk has caught up.
PENDING_BEHIND_BYTES: Final = 8 << 20
PENDING_HIGH_WATER_BYTES: Final = 16 << 20
PAUSE_AFTER_FAULT_S: Final = 0.1
# A sync that takes longer is logged: publishers wait for it.
SLOW_SYNC_S: Final = 1.0


class PumpOutput:
    """The pump of one connection. Reading continues when neither engine nor broker has paused it."""

    def __init__(self, pump: Pump[Engine], after_receive: Callable[[], None]) -> None:
        self.pump = pump
        self.peer_address = pump.peer_address
        self._after_receive = after_receive
        self._engine: ServerEngine | None = None
        self._engine_paused = False
        self._broker_paused = False
        self._is_tight = False

    def after_receive(self) -> None:
        """Pause reading if the engine wants it; everything else can wait for the turn."""
        engine = self._engine
        if engine is not None and engine.is_reading_paused and not self._engine_paused:
            self._engine_paused = True
            self.pump.pause_reading()
        self._after_receive()

    def serve(self, engine: ServerEngine) -> None:
        """Serve an engine that was marked dirty: write, close, set timers."""
        pump = self.pump
        if self._engine is not engine:
            # It is new, or takes the place of one that found out its protocol.
            self._engine = engine
            pump.engine = engine
        if engine.has_tight_output and not self._is_tight:
            self._is_tight = True
            pump.tighten()
        pump.flush()
        if engine.is_reading_paused != self._engine_paused:
            self._engine_paused = engine.is_reading_paused
            self._pause_or_resume()

    def set_broker_paused(self, *, paused: bool) -> None:
        self._broker_paused = paused
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        if self._engine_paused or self._broker_paused:
            self.pump.pause_reading()
        else:
            self.pump.resume_reading()


class CommitLoop:
    """Works for the connections in `outputs`. `on_failure(error)` is called once, when the store has failed.

    Any other exception is logged with its traceback, and everything else continues, in this turn or the next one.
    """

    def __init__(
        self, node: Node, disk: CommitThread, clock: Clock, on_failure: Callable[[BaseException], None]
    ) -> None:
        self.outputs: dict[Pump[Engine], PumpOutput] = {}
        self.has_stopped = False
        self.is_committing = False
        self._node = node
        self._disk = disk
        self._clock = clock
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._log = node.runtime.operator_log
        self._is_due = False
        self._is_scheduled = False
        self._submitted_at = 0.0
        self._sync_s = 0.0
        self._slow_sync_s = 0.0
        # For operators.
        self.sync_count = 0
        self.sync_seconds = 0.0
        self.write_count = 0
        self.written_bytes = 0
        self._is_reading_paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._committed = asyncio.Event()

    def add(self, pump: Pump[Engine]) -> PumpOutput:
        """Serve a new connection."""
        output = PumpOutput(pump, self.after_receive)
        pump.after_receive = output.after_receive
        self.outputs[pump] = output
        if self._is_reading_paused:
            output.set_broker_paused(paused=True)
        return output

    def after_receive(self) -> None:
        """Work once for all that the loop reads in this round, which saves commits and writes."""
        self._schedule()

    def _schedule(self) -> None:
        """Work once more in the next round of the event loop, and only once: it reads sockets between its rounds."""
        if self._is_due:
            return
        self._is_due = True
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._take_scheduled)

    def _take_scheduled(self) -> None:
        self._is_scheduled = False
        self.take()

    def take(self) -> None:
        """Work now if a turn is due."""
        if self._is_due:
            self.work()

    def work(self) -> None:
        """Do a turn of work. An exception ends the turn, not the broker: the next turn continues."""
        self._is_due = False
        is_cut_short = False
        try:
            is_cut_short = self._work()
        except Exception as error:  # noqa: BLE001 - the broker continues
            self._work_failed(error)
        if self.has_stopped:
            return
        node = self._node
        if node.failed:
            self._cut_failed()
        node.end_turn()
        if is_cut_short or node.has_late_work:
            # The loop reads and serves others before it comes to this.
            self._schedule()
        pending = 0
        if self.is_committing:
            pending = node.pending_bytes
            if self._clock.now() - self._submitted_at > HURRY_AFTER_S:
                self._disk.hurry()
        node.runtime.is_disk_behind = pending > PENDING_BEHIND_BYTES
        if pending > PENDING_HIGH_WATER_BYTES:
            self._set_reading_paused(paused=True)
        at = node.next_timeout()
        if at is not None and (self._timer is None or at < self._timer_at):
            self._arm(at)

    def _work_failed(self, error: Exception) -> None:
        if self._node.has_store_failed:
            self._fail(error)
            return
        self._log.fault("a fault in the broker", "a turn failed before its end; the next one continues", error)
        if not self._is_due:
            self._is_due = True
            self._loop.call_later(PAUSE_AFTER_FAULT_S, self.take)

    def _cut_failed(self) -> None:
        """Cut the connections that have failed in this turn."""
        failed = self._node.failed
        self._node.failed = []
        for engine in failed:
            cast("PumpOutput", engine.transport).pump.abort()

    def _serve(self) -> None:
        """Serve the connections that have output, or are to be read on or not. An error in one ends that one only."""
        for engine in self._node.take_dirty():
            try:
                cast("PumpOutput", engine.transport).serve(engine)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is one connection's
                self._node.engine_failed(engine, error)

    def _work(self) -> bool:
        """Work until a commit is running, nothing is left to do, or the turn is over.

        True if the turn is over and work is left.
        """
        node = self._node
        now = self._clock.now()
        while not self.has_stopped:
            node.work(now)
            commit = None if self.is_committing else node.begin_commit()
            if commit is not None:
                self._commit(commit)
                now = self._clock.now()
            elif node.has_output:
                self._serve()
                if not node.has_work:
                    break
            else:
                break
            if node.is_turn_over:
                return True
        return False

    async def settle(self) -> None:
        """Return when no commit is running."""
        while self.is_committing:
            self._committed.clear()
            await self._committed.wait()

    def stop(self) -> None:
        """Stop working."""
        self.has_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def catch_up(self) -> None:
        """Fire the timers that are due."""
        self._timer = None
        if self.has_stopped:
            return
        try:
            self._node.handle_timeout(self._clock.now())
        except Exception as error:  # noqa: BLE001 - other timers must still fire
            self._log.fault("a fault in the broker", "a timer failed; it will be retried", error)
        self.work()

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - self._clock.now()), self.catch_up)

    def _commit(self, commit: Commit) -> None:
        """Write a batch, send the output that depends on it, and sync it if a confirm waits for that.

        The batch is written before the output is sent, so a kill of the process cannot contradict it. Only a large
        batch is written by the other thread, while the output is sent.
        """
        self.write_count += 1
        self.written_bytes += int(commit.size)
        if commit.size > INLINE_WRITE_BYTES:
            self._submit(commit, commit.execute)
            return
        # Writing to the page cache is cheaper than another thread, and so is a small sync on a fast disk.
        try:
            commit.write()
        except Exception as error:  # noqa: BLE001 - it is unknown what was written
            self._fail(error)
            return
        self._serve()
        if commit.is_synced and (commit.size > INLINE_COMMIT_BYTES or self._sync_s >= INLINE_SYNC_S):
            self._submit(commit, commit.finish)
            return
        try:
            if commit.is_synced:
                self._sync(commit.finish)
            else:
                commit.finish()
        except Exception as failure:  # noqa: BLE001 - see above
            self._fail(failure)
            return
        self._ended(commit)

    def _submit(self, commit: Commit, work: Callable[[], None]) -> None:
        self.is_committing = True
        self._submitted_at = self._clock.now()
        self._disk.submit(partial(self._sync, work), partial(self._finished, commit))

    def _sync(self, work: Callable[[], None]) -> None:
        """Do file work that ends with a sync, on any thread. Updates the average sync time."""
        started = self._clock.now()
        work()
        took = self._clock.now() - started
        self._sync_s += (took - self._sync_s) * SYNC_SMOOTHING
        self.sync_count += 1
        self.sync_seconds += took
        if took >= SLOW_SYNC_S:
            self._slow_sync_s = took

    def _ended(self, commit: Commit) -> None:
        if self._slow_sync_s > 0.0:
            self._log.warning("slow sync", f"a sync took {self._slow_sync_s:.1f} s; confirms waited for it")
            self._slow_sync_s = 0.0
        self._node.end_commit(commit)

    def _finished(self, commit: Commit, error: BaseException | None) -> None:
        self.is_committing = False
        self._disk.calm()
        self._committed.set()
        if error is not None:
            self._fail(error)
            return
        try:
            self._ended(commit)
        except Exception as fault:  # noqa: BLE001 - see `work`
            self._work_failed(fault)
        if not self.has_stopped:
            self._set_reading_paused(paused=False)
            self._commit_what_waits()
            self.work()

    def _commit_what_waits(self) -> None:
        """Start the commit of what arrived during the last one, before a turn that may be long."""
        try:
            if self._node.has_late_work:
                # It will be a long one: send the confirms first.
                self._serve()
            commit = self._node.begin_commit()
            if commit is not None:
                self._commit(commit)
        except Exception as error:  # noqa: BLE001 - see `work`
            self._work_failed(error)

    def _fail(self, error: BaseException) -> None:
        """It is unknown how much of the last batch is on disk: stop at once and confirm nothing more."""
        self.stop()
        self._on_failure(error)

    def _set_reading_paused(self, *, paused: bool) -> None:
        if self._is_reading_paused != paused:
            self._is_reading_paused = paused
            for output in self.outputs.values():
                output.set_broker_paused(paused=paused)
