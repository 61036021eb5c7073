"""Three RabbitMQ nodes on one machine, each in a network namespace of its own.

    client network   10.213.N.2 of node N, one cable each to whoever runs this
    cluster network  10.214.0.N of node N, over a bridge: cutting it parts a node from the others, not from its clients

It needs root for `ip netns`. Nodes find each other by classic configuration, and a minority pauses (`pause_minority`).
"""

import contextlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tests.rabbitmq import PASSWORD, USER, RabbitMQ

COUNT: Final = 3
CLUSTER: Final = "10.214.0"
CONTROL: Final = "/usr/lib/rabbitmq/bin/rabbitmqctl"
TICK_S: Final = 5
"""Erlang takes a node for gone after about as many seconds without a sign of it. Its own default is 60."""


DEAD_LETTER_TIMEOUT_S: Final = 10.0
"""As docs/how-to/scale.md says. With RabbitMQ's own 180 s, a retry can wait for six minutes after a node is killed."""


class Node(RabbitMQ):
    """A node of the cluster; its namespace is made and removed by `Cluster`."""

    def __init__(self, number: int, cookie: str, tick_s: int) -> None:
        self.number = number
        self._tick_s = tick_s
        self.namespace = f"waybill{os.getpid()}-{number}"
        self.name = f"rabbit@{CLUSTER}.{number}"
        # The machine may do much else.
        self.start_timeout_s = 600.0
        self._cookie = cookie
        self.host = f"10.213.{number}.2"
        super().__init__(dead_letter_timeout_s=DEAD_LETTER_TIMEOUT_S)

    @property
    def addresses(self) -> list[str]:
        return [self.host, f"{CLUSTER}.{self.number}"]

    def command(self, *arguments: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl; what it prints. Raises CalledProcessError."""
        command = self.command(CONTROL, "--longnames", "-n", self.name, "-q", *arguments)
        return subprocess.run(command, env=self._environment, check=True, capture_output=True, text=True).stdout

    def cut(self, *, off: bool) -> None:
        """Cut the node off from the other nodes, or connect it again."""
        run("ip", "-n", self.namespace, "link", "set", "cluster", "down" if off else "up")

    def _write_configuration(self) -> dict[str, str]:
        environment = super()._write_configuration()
        cookie = self.directory / ".erlang.cookie"
        cookie.chmod(0o600)
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)
        nodes = "".join(
            f"cluster_formation.classic_config.nodes.{number} = rabbit@{CLUSTER}.{number}\n"
            for number in range(1, COUNT + 1)
        )
        (self.directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.clients = {self.host}:5672\nload_definitions = {self.directory / 'definitions.json'}\n"
            "cluster_formation.peer_discovery_backend = classic_config\n"
            f"{nodes}cluster_partition_handling = pause_minority\nloopback_users = none\n"
        )
        del environment["ERL_EPMD_ADDRESS"]
        environment["RABBITMQ_NODENAME"] = self.name
        environment["RABBITMQ_USE_LONGNAME"] = "true"
        environment["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"] = f"-kernel net_ticktime {self._tick_s}"
        self.port = 5672
        return environment

    def _start_epmd(self) -> None:
        self._epmd_port = int(self._environment["ERL_EPMD_PORT"])
        super()._start_epmd()


class Cluster:
    """The nodes, and the networks between them."""

    def __init__(self, tick_s: int = TICK_S) -> None:
        cookie = os.urandom(16).hex()
        self._bridge = f"wb{os.getpid()}"
        self._has_networks = False
        self.nodes = [Node(number, cookie, tick_s) for number in range(1, COUNT + 1)]
        # All nodes look for each other at the same port.
        for node in self.nodes:
            node._environment["ERL_EPMD_PORT"] = "4369"

    def uri(self, virtual_host: str, heartbeat_s: int = 10) -> str:
        hosts = ",".join(f"{node.host}:{node.port}" for node in self.nodes)
        path = quote(virtual_host, safe="")
        options = f"heartbeat={heartbeat_s}&connection_timeout=5000&request_timeout=30000"
        return f"amqp://{USER}:{PASSWORD}@{hosts}/{path}?{options}"

    def start(self) -> None:
        """Make the networks and the cluster. Raises CalledProcessError, RabbitMQFailedError."""
        self._has_networks = True
        run("ip", "link", "add", self._bridge, "type", "bridge")
        run("ip", "link", "set", self._bridge, "up")
        for node in self.nodes:
            self._connect(node)
        # The first one is the seed. It is what the others join, both at the same time.
        seed, *others = self.nodes
        seed.start()
        with ThreadPoolExecutor(len(others)) as threads:
            for starting in [threads.submit(node.start) for node in others]:
                starting.result()
        self.await_whole()

    def await_whole(self) -> None:
        """Wait until all nodes are members, and up."""
        self.nodes[0].control("await_online_nodes", str(COUNT), "--timeout", "120")

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def close(self) -> None:
        with ThreadPoolExecutor(COUNT) as threads:
            list(threads.map(Node.close, self.nodes))
        if not self._has_networks:
            return
        for node in self.nodes:
            with contextlib.suppress(subprocess.CalledProcessError):
                run("ip", "netns", "del", node.namespace)
        with contextlib.suppress(subprocess.CalledProcessError):
            run("ip", "link", "del", self._bridge)

    def keep_logs(self, directory: Path) -> None:
        for node in self.nodes:
            if (node.directory / "log").exists():
                shutil.copytree(node.directory / "log", directory / f"rabbitmq-{node.number}", dirs_exist_ok=True)

    def _connect(self, node: Node) -> None:
        short = f"w{os.getpid()}-{node.number}"
        run("ip", "netns", "add", node.namespace)
        run("ip", "-n", node.namespace, "link", "set", "lo", "up")
        for inside, outside, address in (
            ("clients", f"{short}c", f"{node.host}/30"),
            ("cluster", f"{short}n", f"{CLUSTER}.{node.number}/24"),
        ):
            run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", node.namespace)
            run("ip", "-n", node.namespace, "address", "add", address, "dev", inside)
            run("ip", "-n", node.namespace, "link", "set", inside, "up")
            run("ip", "link", "set", outside, "up")
        run("ip", "address", "add", f"10.213.{node.number}.1/30", "dev", f"{short}c")
        run("ip", "link", "set", f"{short}n", "master", self._bridge)


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
