"""The node as a whole: /api/overview, /api/nodes, /api/cluster-name, and the versions that clients ask for."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Final

from waybill import __version__
from waybill.management import node_state
from waybill.management.api_context import CLUSTER_NAME, ApiContext
from waybill.management.call import NO_CONTENT, Answer, Call, require, text_of
from waybill.management.connections import channel_count
from waybill.management.errors import not_found
from waybill.management.history import Row, Series
from waybill.management.listing import Item, Listing, cut_to_columns
from waybill.management.rates import Span, details, lengths, message_stats, spans_of
from waybill.management.router import Route
from waybill.management.statistic_kinds import CHURN, NODE, TOTALS, VIRTUAL_HOSTS
from waybill.model.virtual_host import VirtualHost

VERSION: Final = "3.10.8"
"""The RabbitMQ version whose API this is: clients choose their requests by it."""
EXCHANGE_TYPES: Final = (
    ("direct", "AMQP direct exchange, as per the AMQP specification"),
    ("fanout", "AMQP fanout exchange, as per the AMQP specification"),
    ("headers", "AMQP headers exchange, as per the AMQP specification"),
    ("topic", "AMQP topic exchange, as per the AMQP specification"),
    ("x-consistent-hash", "Consistent Hashing Exchange"),
    ("x-delayed-message", "Delayed Message Exchange"),
)
RETENTION: Final = {"basic": [600, 7200], "detailed": [60], "global": [600, 7200, 86_400]}
NO_RATE: Final = {"rate": 0.0}
ALWAYS_ZERO: Final = (
    *("gc_num", "gc_bytes_reclaimed", "context_switches"),
    *("io_read_count", "io_read_bytes", "io_seek_count", "io_reopen_count"),
    *("mnesia_ram_tx_count", "mnesia_disk_tx_count", "msg_store_read_count", "msg_store_write_count"),
    *("queue_index_read_count", "queue_index_write_count"),
)
"""Figures that only RabbitMQ has; clients require them."""


class OverviewRoutes:
    """The routes for the node."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/overview", self._overview),
            Route("GET", "/nodes", self._nodes),
            Route("GET", "/nodes/{node}", self._node),
            Route("GET", "/nodes/{node}/memory", self._memory),
            Route("GET", "/nodes/{node}/memory/relative", self._memory),
            Route("GET", "/nodes/{node}/memory/ets", self._no_tables),
            Route("GET", "/cluster-name", self._cluster_name),
            Route("PUT", "/cluster-name", self._rename),
            Route("GET", "/version", self._version),
        ]

    # --- the overview ---

    async def _overview(self, call: Call) -> Item:
        context, principal = self._context, call.principal
        spans = spans_of(call.query)
        sampler = context.sampler
        series = sampler.series(TOTALS)
        row = totals_row(context)
        item: Item = {
            "cluster_name": context.cluster_name,
            "cluster_tags": {},
            "default_queue_type": "classic",
            "disable_stats": False,
            "enable_queue_totals": False,
            "erlang_full_version": f"Python {sys.version.split()[0]}",
            "erlang_version": "25",
            "exchange_types": exchange_types(),
            "is_op_policy_updating_enabled": True,
            "management_version": VERSION,
            "node": context.node_name,
            "node_tags": {},
            "product_name": "Waybill",
            "product_version": __version__,
            "rabbitmq_version": VERSION,
            "rates_mode": "basic",
            "release_series_support_status": "supported",
            "sample_retention_policies": RETENTION,
            "statistics_db_event_queue": 0,
            "object_totals": self._objects(call),
        }
        item["churn_rates"] = churn(row, series, sampler.now, spans.msg_rates)
        if principal.is_monitor:
            item["queue_totals"] = lengths(TOTALS, row, series, sampler.now, spans.lengths)
            item["message_stats"] = message_stats(TOTALS, row, series, sampler.now, spans.msg_rates)
            item["listeners"] = [{"node": context.node_name, **one} for one in context.listeners()]
            item["contexts"] = contexts(context)
        else:
            hosts = context.virtual_hosts(call)
            own = self._row_of(hosts)
            item["queue_totals"] = lengths(VIRTUAL_HOSTS, own, None, sampler.now, None)
            item["message_stats"] = message_stats(VIRTUAL_HOSTS, own, None, sampler.now, None)
        return cut_to_columns(call.query, item)

    def _row_of(self, hosts: list[VirtualHost]) -> Row:
        rows = [
            series.last
            for host in hosts
            if (series := self._context.sampler.series(VIRTUAL_HOSTS, (host.name,))) is not None and series.last
        ]
        return tuple(map(sum, zip(*rows, strict=True))) or (0,) * len(VIRTUAL_HOSTS.names)

    def _objects(self, call: Call) -> dict[str, int]:
        context = self._context
        hosts = context.virtual_hosts(call)
        engines = context.connections(call.principal)
        return {
            "channels": sum(map(channel_count, engines)),
            "connections": len(engines),
            "consumers": sum(context.sampler.consumers.get(host.name, 0) for host in hosts),
            "exchanges": sum(len(host.exchanges) for host in hosts),
            "queues": sum(len(host.queues) for host in hosts),
        }

    async def _version(self, _call: Call) -> Answer:
        return Answer(200, octets=VERSION.encode(), headers=[("Content-Type", "text/plain")])

    # --- nodes ---

    async def _nodes(self, call: Call) -> Answer:
        call.principal.require_monitor()
        span = spans_of(call.query).node_stats
        listing = Listing[str](lambda _name: node_item(self._context, span), {"name": str}, tie=str)
        return await listing.answer(call, [self._context.node_name])

    def _check_name(self, call: Call) -> None:
        call.principal.require_monitor()
        if call["node"] != self._context.node_name:
            raise not_found()

    async def _node(self, call: Call) -> Item:
        self._check_name(call)
        item = node_item(self._context, spans_of(call.query).node_stats)
        if call.flag("memory"):
            item["memory"] = self._parts()
        return cut_to_columns(call.query, item)

    async def _memory(self, call: Call) -> Item:
        self._check_name(call)
        parts = self._parts()
        if call.request.path.endswith("/relative"):
            total = max(int(parts["total"]["rss"]), 1)
            return {
                "memory": {name: round(value * 100 / total) for name, value in parts.items() if isinstance(value, int)}
            }
        return {"memory": parts}

    def _parts(self) -> dict[str, Any]:
        runtime = self._context.node.runtime
        total = node_state.resident_bytes()
        found: dict[str, Any] = {
            "msg_index": 0,
            "binary": int(runtime.memory_bytes),
            "metadata": int(runtime.footprint_bytes),
            "connection_other": int(runtime.held_bytes) + int(runtime.unread_bytes),
        }
        found["other_proc"] = max(total - sum(found.values()), 0)
        return {**found, "strategy": "rss", "total": {"allocated": total, "erlang": total, "rss": total}}

    async def _no_tables(self, call: Call) -> Item:
        self._check_name(call)
        return {"ets_tables_memory": "no_tables"}

    async def _cluster_name(self, _call: Call) -> Item:
        return {"name": self._context.cluster_name}

    async def _rename(self, call: Call) -> Answer:
        call.principal.require_administrator()
        body = call.take_body()
        require(body, "name")
        name = text_of(body, "name")
        await self._context.perform(lambda node: node.administration.parameters.put(CLUSTER_NAME, name))
        return Answer(NO_CONTENT)


def exchange_types() -> list[Item]:
    """Return the exchange types."""
    return [{"description": text, "enabled": True, "name": name} for name, text in EXCHANGE_TYPES]


def contexts(context: ApiContext) -> list[Item]:
    """Return the addresses of the API."""
    return [
        {
            "cowboy_opts": "[]",
            "description": "RabbitMQ Management",
            "ip": one.get("ip_address", ""),
            "node": context.node_name,
            "path": "/",
            "port": str(one.get("port", "")),
        }
        for one in context.listeners()
        if str(one.get("protocol", "")).startswith("http")
    ]


def totals_row(context: ApiContext) -> Row:
    """Return the totals of the last sample, which is seconds old, with the queue lengths of that time."""
    return context.sampler.row(TOTALS)


def churn(row: Row, series: Series | None, now: int, span: Span | None) -> Item:
    """Return how many connections, channels and queues were opened and closed, with the rates."""
    found: Item = {}
    for name in CHURN:
        index = TOTALS.names.index(name)
        found[name] = row[index]
        found[f"{name}_details"] = details(series, (index,), now, span)
    return found


def node_item(context: ApiContext, span: Span | None) -> Item:
    """Return the node as JSON."""
    sampler = context.sampler
    series = sampler.series(NODE)
    row = sampler.row(NODE)
    item = _other_fields(context)
    for index, name in enumerate(NODE.names):
        if name == "cpu_ms":
            continue
        value = row[index]
        item[name] = value
        item[f"{name}_details"] = details(series, (index,), sampler.now, span)
    for name in ("io_write_avg_time", "io_sync_avg_time", "io_read_avg_time", "io_seek_avg_time"):
        item[name] = 0.0
        item[f"{name}_details"] = NO_RATE
    syncs, seconds = row[NODE.names.index("io_sync_count")], row[NODE.names.index("io_sync_time")]
    item["io_sync_avg_time"] = seconds / 1000 / syncs if syncs else 0.0
    for name in ALWAYS_ZERO:
        item[name] = 0
        item[f"{name}_details"] = NO_RATE
    return item | churn(totals_row(context), sampler.series(TOTALS), sampler.now, span)


def _other_fields(context: ApiContext) -> Item:
    """Return the fields that are not counters."""
    node = context.node
    runtime = node.runtime
    return {
        "applications": [
            # Clients read the version of the API from this one.
            {"description": "RabbitMQ", "name": "rabbit", "version": VERSION},
            {"description": "Waybill", "name": "waybill", "version": __version__},
        ],
        "auth_mechanisms": [
            {"description": f"SASL {name}", "enabled": True, "name": name}
            for name in ("PLAIN", "AMQPLAIN", "SCRAM-SHA-256", "EXTERNAL")
        ],
        "being_drained": False,
        "cluster_links": [],
        "config_files": [],
        "contexts": contexts(context),
        "db_dir": str(context.broker.data_dir or ""),
        "disk_free_alarm": bool(runtime.disk_alarm),
        "disk_free_limit": node.disk_free_limit_bytes,
        "enabled_plugins": ["rabbitmq_management", "rabbitmq_prometheus"],
        "exchange_types": exchange_types(),
        "fd_total": node_state.descriptors_max(),
        "log_files": [],
        "mem_alarm": bool(node.alarm) and not runtime.disk_alarm,
        "mem_calculation_strategy": "rss",
        "mem_limit": max(int(runtime.configured_limit_bytes), 1),
        # Not in RabbitMQ: the memory that the limit is for, without what the process needs besides messages.
        "message_bytes_in_memory": int(runtime.memory_bytes),
        "metrics_gc_queue_length": {},
        "name": context.node_name,
        "net_ticktime": 60,
        "os_pid": str(os.getpid()),
        "partitions": [],
        "proc_total": 1_048_576,
        "processors": os.cpu_count() or 1,
        "ra_open_file_metrics": {},
        "rates_mode": "basic",
        "run_queue": 0,
        "running": True,
        "sockets_total": int(node.limits.connections_max),
        "type": "disc" if context.broker.data_dir is not None else "ram",
        "uptime": int((time.monotonic() - context.started_at) * 1000),
    }
