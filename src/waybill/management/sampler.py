"""Samples the figures of all objects every five seconds, a few objects at a time.

The history of the node, of queues and of exchanges is saved in the data directory and read at startup. So counters
continue: they are the sum of what this process and those before it have counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from waybill.broker import Broker
from waybill.engine.amqp091.server.connection import Connection as Amqp091Connection
from waybill.engine.server_connection import ServerConnection
from waybill.management import node_state
from waybill.management.history import MINUTE, SAMPLE_SECONDS, Row, Series
from waybill.management.history_file import read_history, write_history
from waybill.management.known_queues import KnownQueues
from waybill.management.statistic_kinds import (
    CHANNELS,
    CONNECTIONS,
    EXCHANGES,
    NODE,
    QUEUES,
    SAVED_KINDS,
    TOTALS,
    VIRTUAL_HOSTS,
    Kind,
)
from waybill.model.changed_queues import changed_queues
from waybill.model.exchange import Exchange

BATCH: Final = 200
"""Objects to sample before other requests are served: less than a millisecond."""
SCAN_BATCH: Final = 1000
"""Queues to check for changes before other requests are served: half a millisecond."""
TRACKED_MAX: Final = 2000
"""Objects of each kind with their full history; further ones have a history of a minute."""
SAVE_SECONDS: Final = 60
FILE: Final = "management-history"
ALL: Final = ("",)

Key = tuple[str, ...]
"""The key of an object: for a queue, its virtual host and its name."""

_log = logging.getLogger("waybill.management")


def steady_clock() -> Callable[[], float]:
    """Return a clock of the Unix time that goes on steadily when the system's clock is set."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset


class Sampler:
    """The history of a broker. `now` is the time of the last sample."""

    def __init__(self, broker: Broker, clock: Callable[[], float] | None = None) -> None:
        """`clock` returns the Unix time, by default that of the start and what has passed since then."""
        self.now = 0
        self.consumers: dict[str, int] = {}
        """The number of consumers by virtual host."""
        self._broker = broker
        self._clock = clock or steady_clock()
        self._series: dict[str, dict[Key, Series]] = {
            kind.name: {} for kind in (QUEUES, EXCHANGES, VIRTUAL_HOSTS, CONNECTIONS, CHANNELS, TOTALS, NODE)
        }
        self._before: dict[str, dict[Key, Row]] = {}
        self._seen: dict[str, set[Key]] = {}
        self._queues = KnownQueues(len(QUEUES.names))
        self._queue_changes = (-1, -1, -1)
        """The numbers of deleted queues, created queues and virtual hosts."""
        self._task: asyncio.Task[None] | None = None
        self._saved_at = 0.0

    # --- lifecycle ---

    async def start(self) -> None:
        """Read the saved history, take a sample, and sample regularly from now on."""
        directory = self._broker.data_dir
        if directory is not None:
            kept = await asyncio.to_thread(read_history, directory / FILE, int(self._clock()))
            for kind in SAVED_KINDS:
                self._series[kind.name] = kept.get(kind.name, {})
                zeros = (0,) * len(kind.gauges)
                self._before[kind.name] = {
                    key: series.last[: len(kind.counters)] + zeros
                    for key, series in self._series[kind.name].items()
                    if series.last
                }
        await self.sample()
        self._saved_at = self._clock()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="waybill management sampler")

    async def close(self) -> None:
        """Stop sampling, and save the history."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
            await self.save()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS - self._clock() % SAMPLE_SECONDS)
            try:
                await self.sample()
                if self._clock() >= self._saved_at + SAVE_SECONDS:
                    self._saved_at = self._clock()
                    await self.save()
            except Exception:  # noqa: BLE001 - see below
                # The next sample may succeed. Without samples, only rates are missing.
                self._queues.traces.clear()
                _log.exception("cannot sample the broker: rates are missing until the next sample")

    async def save(self) -> None:
        """Save the history, if the broker has a data directory."""
        directory = self._broker.data_dir
        if directory is None:
            return
        packed = {}
        for kind in SAVED_KINDS:
            rows = []
            for index, (key, series) in enumerate(list(self._series[kind.name].items())):
                rows.append((list(key), series.packed()))
                if index % BATCH == 0:
                    await asyncio.sleep(0)
            packed[kind.name] = rows
        try:
            await asyncio.to_thread(write_history, directory / FILE, packed)
        except OSError as error:
            _log.warning("cannot save the history of rates: %s", error)

    # --- sampling ---

    async def sample(self) -> None:
        """Sample everything once."""
        now = int(self._clock())
        moment = now - now % SAMPLE_SECONDS
        # Unchanged queues are not sampled, so deleted ones cannot be found here: see `_sum_up_queues`.
        self._seen = {name: set() for name in self._series if name != QUEUES.name}
        await self._sample_queues(moment)
        sums = self._sum_up_queues(moment)
        await self._sample_exchanges(moment, sums)
        octets = await self._sample_connections(moment)
        gauges = await asyncio.to_thread(node_state.read_gauges, self._broker)
        loop = self._broker.commit_loop
        row = (loop.write_count, loop.written_bytes, loop.sync_count, int(loop.sync_seconds * 1e6), *octets, *gauges)
        self._add(NODE, ALL, moment, row)
        self._add_churn(sums)
        self._add(TOTALS, ALL, moment, tuple(sums))
        self._forget_deleted()
        self.now = moment

    def _add(self, kind: Kind, key: Key, moment: int, row: Row) -> None:
        all_of_them = self._series[kind.name]
        series = all_of_them.get(key)
        if series is None:
            if not any(row) and kind is not TOTALS:
                return
            is_many = len(all_of_them) >= TRACKED_MAX
            series = all_of_them[key] = Series(MINUTE if is_many else kind.levels)
            series.add(moment - SAMPLE_SECONDS, (0,) * len(row))
        if kind is not QUEUES:
            self._seen[kind.name].add(key)
        before = self._before.get(kind.name)
        if before and key in before:
            row = tuple(map(int.__add__, row, before[key]))
        series.add(moment, row)

    async def _sample_queues(self, moment: int) -> None:
        for host in list(self._broker.node.virtual_hosts.values()):
            queues = list(host.queues.values())
            for start in range(0, len(queues), SCAN_BATCH):
                changed = changed_queues(queues[start : start + SCAN_BATCH], self._queues.traces)
                await asyncio.sleep(0)
                for index, queue in enumerate(changed):
                    # The counts of a queue deleted meanwhile are already in the counters of deleted queues.
                    if not queue.is_deleted:
                        row = (*queue.counts(), queue.message_count, int(queue.unsettled_count))
                        self._queues.put(host.name, queue, row)
                        self._add(QUEUES, (host.name, queue.name), moment, row)
                    if index % BATCH == BATCH - 1:
                        await asyncio.sleep(0)

    def _sum_up_queues(self, moment: int) -> list[int]:
        """Add the rows of virtual hosts. Returns a row of totals that has only the sums of queues; the rest is 0."""
        counters = self._broker.node.runtime.counters
        sums = [0] * len(TOTALS.names)
        for index, count in enumerate(counters.retired):
            sums[index] += count
        first_gauge = len(TOTALS.counters)
        hosts = self._broker.node.virtual_hosts
        changes = (int(counters.queues_deleted), int(counters.queues_created), len(hosts))
        if changes != self._queue_changes:
            self._queue_changes = changes
            self._queues.forget_deleted(hosts)
            there = {(host.name, name) for host in hosts.values() for name in host.queues}
            for key in [key for key in self._series[QUEUES.name] if key not in there]:
                self._forget(QUEUES.name, key)
        for name in hosts:
            own = self._queues.sums.get(name, [0] * len(VIRTUAL_HOSTS.names))
            self._add(VIRTUAL_HOSTS, (name,), moment, tuple(own))
            for index, count in enumerate(own[:-2]):
                sums[index] += count
            sums[first_gauge] += own[-2]
            sums[first_gauge + 1] += own[-1]
        self.consumers = {name: self._queues.consumers.get(name, 0) for name in hosts}
        return sums

    async def _sample_exchanges(self, moment: int, sums: list[int]) -> None:
        counters = self._broker.node.runtime.counters
        published_in, published_out = int(counters.published_in), int(counters.published_out)
        exchanges = self._exchanges()
        while batch := list(islice(exchanges, BATCH)):
            for name, exchange in batch:
                row = (int(exchange.published_in), int(exchange.published_out))
                published_in += row[0]
                published_out += row[1]
                self._add(EXCHANGES, (name, exchange.name), moment, row)
            await asyncio.sleep(0)
        start = len(QUEUES.counters)
        sums[start : start + 6] = (
            published_in,
            published_out,
            int(counters.confirmed),
            int(counters.returned),
            int(counters.unroutable),
            int(counters.polled_empty),
        )

    def _exchanges(self) -> Iterator[tuple[str, Exchange]]:
        for host in list(self._broker.node.virtual_hosts.values()):
            for exchange in list(host.exchanges.values()):
                yield host.name, exchange

    async def _sample_connections(self, moment: int) -> tuple[int, int]:
        """Return the octets that all connections have received and sent, including closed ones."""
        counters = self._broker.node.runtime.counters
        received, sent = int(counters.received_octets), int(counters.sent_octets)
        for index, engine in enumerate(list(self._broker.node.connections)):
            if not isinstance(engine, ServerConnection):
                continue
            key = (str(id(engine)),)
            row = (
                *(int(engine.received_octets), int(engine.sent_octets)),
                *(int(engine.received_count), int(engine.sent_count)),
            )
            received += row[0]
            sent += row[1]
            self._add(CONNECTIONS, key, moment, row)
            if isinstance(engine, Amqp091Connection):
                for channel in list(engine.channels.values()):
                    confirms = channel.confirms
                    self._add(
                        CHANNELS,
                        (*key, str(int(channel.number))),
                        moment,
                        (
                            int(channel.publish_count),
                            0 if confirms is None else int(confirms.confirmed_tag),
                            int(channel.delivery_tag),
                            int(channel.acknowledged_count),
                        ),
                    )
            if index % BATCH == BATCH - 1:
                await asyncio.sleep(0)
        return received, sent

    def _add_churn(self, sums: list[int]) -> None:
        counters = self._broker.node.runtime.counters
        open_channels = sum(
            len(engine.channels) for engine in self._broker.node.connections if isinstance(engine, Amqp091Connection)
        )
        start = len(QUEUES.counters) + 6
        opened = int(counters.channels_opened)
        sums[start : start + 7] = (
            int(counters.connections_opened),
            max(int(counters.connections_opened) - len(self._broker.node.connections), 0),
            opened,
            max(opened - open_channels, 0),
            int(counters.queues_declared),
            int(counters.queues_created),
            int(counters.queues_deleted),
        )

    def _forget_deleted(self) -> None:
        """Forget objects that no longer exist."""
        for name, seen in self._seen.items():
            series = self._series[name]
            if len(series) > len(seen):
                for key in [key for key in series if key not in seen]:
                    self._forget(name, key)

    def _forget(self, name: str, key: Key) -> None:
        self._series[name].pop(key, None)
        self._before.get(name, {}).pop(key, None)

    # --- reading ---

    def series(self, kind: Kind, key: Key = ALL) -> Series | None:
        """Return the history of an object, None if it has none."""
        return self._series[kind.name].get(key)

    def row(self, kind: Kind, key: Key = ALL) -> Row:
        """Return the newest row of an object; zeros if it has none."""
        series = self.series(kind, key)
        return series.last if series is not None and series.last else (0,) * len(kind.names)

    def before(self, kind: Kind, key: Key = ALL) -> Row:
        """Return the counters of an object from earlier processes; empty if there are none."""
        return self._before.get(kind.name, {}).get(key, ())


def connection_key(engine: ServerConnection) -> Key:
    """Return the key of a connection."""
    return (str(id(engine)),)
