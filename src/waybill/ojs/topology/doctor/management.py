"""Findings from RabbitMQ's management plugin that AMQP cannot give: alarms, all queues, bindings, channels."""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec

from waybill.ojs.errors import JobsError
from waybill.ojs.topology.declarations import BindingDeclaration
from waybill.ojs.topology.doctor.diagnosis import Diagnosis, Severity
from waybill.ojs.topology.topology import Topology

TIMEOUT_SECONDS: Final = 10.0
Row = dict[str, object]


class ManagementFailed(JobsError):
    """The management plugin does not answer. The text never contains the password."""


class Management:
    """A client of `http://user:password@host:15672`. Calls block."""

    def __init__(self, url: str, virtual_host: str) -> None:
        """Raises ManagementFailed if the URL is invalid."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ManagementFailed("the management URL begins with http:// or https://")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._base = urlunsplit((parts.scheme, host + (f":{parts.port}" if parts.port else ""), parts.path, "", ""))
        login = f"{parts.username or 'guest'}:{parts.password or 'guest'}"
        self._authorization = "Basic " + base64.b64encode(login.encode()).decode()
        self._virtual_host = virtual_host

    def get(self, path: str) -> list[Row]:
        """Fetch a list below /api; `{vhost}` in the path is replaced by the virtual host. Raises ManagementFailed."""
        url = f"{self._base.rstrip('/')}/api/{path.format(vhost=quote(self._virtual_host, safe=''))}"
        request = urllib.request.Request(url, headers={"Authorization": self._authorization})  # noqa: S310 - see __init__
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310 - see __init__
                return msgspec.json.decode(response.read(), type=list[Row])
        except urllib.error.HTTPError as error:
            error.close()
            raise ManagementFailed(f"{self._base}: {error.code} {error.reason}") from None
        except (OSError, msgspec.DecodeError) as error:
            raise ManagementFailed(f"{self._base}: {error}") from None

    def diagnoses(self, topology: Topology, queues: tuple[str, ...]) -> list[Diagnosis]:
        """Return all findings. Raises ManagementFailed."""
        nodes = self.get("nodes")
        return [
            *_of_nodes(nodes),
            *_of_queues(self.get("queues/{vhost}"), len(nodes), topology),
            *_of_channels([row for row in self.get("channels") if row.get("vhost") == self._virtual_host]),
            *_of_bindings(self.get("bindings/{vhost}"), topology, queues),
        ]


def _of_nodes(nodes: list[Row]) -> Iterator[Diagnosis]:
    for node in nodes:
        name = str(node.get("name"))
        if not node.get("running", True):
            yield Diagnosis("node", Severity.PROBLEM, name, "it does not run", "see its log", "start it again")
        for alarm, what in (("mem_alarm", "memory"), ("disk_free_alarm", "disk space")):
            if node.get(alarm):
                finding = f"it has a {what} alarm: publishers are blocked"
                cause = f"{what} is beyond its limit"
                remedy = "drain queues, free some, or raise the limit"
                yield Diagnosis("alarm", Severity.PROBLEM, name, finding, cause, remedy)
        if node.get("partitions"):
            yield Diagnosis(
                "partition",
                Severity.PROBLEM,
                name,
                "it is partitioned from other nodes of its cluster",
                f"a network partition: {node['partitions']}",
                "heal the network, then restart the nodes of the smaller side",
            )


def _of_queues(rows: list[Row], node_count: int, topology: Topology) -> Iterator[Diagnosis]:
    job_prefixes = topology.job_queue(""), topology.partition_prefix
    for row in rows:
        name = str(row.get("name"))
        arguments = row.get("arguments")
        arguments = arguments if isinstance(arguments, dict) else {}
        policy = row.get("effective_policy_definition")
        policy = policy if isinstance(policy, dict) else {}
        if not name.startswith(job_prefixes) or name.startswith(
            (topology.control_queue(""), topology.release_queue(""))
        ):
            continue
        if arguments.get("x-max-length") == 0:
            # The placeholder of a queue with partitions stays empty.
            continue
        if not row.get("durable"):
            remedy = "delete it when it is empty and declare it durable"
            yield Diagnosis("transient", Severity.PROBLEM, name, "a restart loses it", "it is not durable", remedy)
        if arguments.get("x-queue-type", "classic") == "classic" and node_count > 1 and "ha-mode" not in policy:
            yield Diagnosis(
                "one-node",
                Severity.WARNING,
                name,
                "it lives on one node of the cluster",
                "it is a classic queue without mirrors",
                "`waybill topology migrate --to-queue-type quorum`",
            )
        is_limited = any(key in arguments for key in ("x-max-length", "x-max-length-bytes")) or any(
            key in policy for key in ("max-length", "max-length-bytes")
        )
        if is_limited and "reject-publish" not in str(arguments.get("x-overflow", policy.get("overflow", "drop-head"))):
            finding = "when it is full, the oldest jobs are dropped"
            remedy = "set the overflow to reject-publish"
            yield Diagnosis("drops-when-full", Severity.PROBLEM, name, finding, "x-overflow is drop-head", remedy)


def _of_channels(rows: list[Row]) -> Iterator[Diagnosis]:
    for row in rows:
        name, user = str(row.get("name")), row.get("user")
        statistics = row.get("message_stats")
        published = statistics.get("publish", 0) if isinstance(statistics, dict) else 0
        if published and not row.get("confirm") and not row.get("transactional"):
            yield Diagnosis(
                "no-confirms",
                Severity.WARNING,
                name,
                f"user {user} has published {published} messages without confirms",
                "the program does not wait for confirms: a crash loses messages in transit",
                "use Jobs.push, or enable confirms in that program",
            )
        if row.get("consumer_count") and not row.get("prefetch_count") and not row.get("global_prefetch_count"):
            finding = f"user {user} consumes without a prefetch limit"
            cause = "one consumer takes all jobs into memory, and other consumers get none"
            yield Diagnosis("no-prefetch", Severity.WARNING, name, finding, cause, "set basic.qos in that program")


def _of_bindings(rows: list[Row], topology: Topology, queues: tuple[str, ...]) -> Iterator[Diagnosis]:
    there = {(row.get("source"), row.get("destination"), row.get("routing_key")) for row in rows}
    wanted = [*topology.shared_entities(), *(entity for queue in queues for entity in topology.queue_entities(queue))]
    for entity in wanted:
        if not isinstance(entity, BindingDeclaration):
            continue
        if (entity.exchange, entity.destination, entity.routing_key) not in there:
            yield Diagnosis(
                "not-bound",
                Severity.PROBLEM,
                entity.destination,
                f"it receives nothing from {entity.exchange}",
                f"it is not bound there with the key {entity.routing_key!r}",
                "`waybill topology declare`",
            )
