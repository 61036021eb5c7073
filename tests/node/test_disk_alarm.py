"""The alarm of the disk: nobody outruns it, it refuses what grows, and a full disk costs nothing that was confirmed."""

import errno
from collections.abc import Callable
from random import Random

import pytest

from waybill.engine.host import Limits
from waybill.model.declaration_limits import ARGUMENTS_BYTES_MAX
from waybill.model.errors import InvalidArgument, ResourceRefused
from waybill.model.message import Address, Message
from waybill.model.virtual_host import VirtualHost
from waybill.node.node import FORMATS, Node, NodeOptions
from waybill.testing.simulated_disk import SimulatedDisk

LIMIT = 4 << 20
ADDRESS = Address("", "q")


def open_node(disk: SimulatedDisk) -> Node:
    options = NodeOptions("test", "0", Random(1).randbytes, 1 << 30)
    options.disk_free_limit_bytes = LIMIT
    options.limits = Limits()
    node = Node.open(disk, options, 1.0)
    turn(node)
    return node


def turn(node: Node) -> None:
    """What a broker does once a round."""
    node.work(1.0)
    while (commit := node.begin_commit()) is not None:
        commit.execute()
        node.end_commit(commit)
        node.work(1.0)


def publish(host: VirtualHost, size: int) -> None:
    host.queues["q"].publish(Message(FORMATS[0], bytes(size), ADDRESS, True, 0, -1, 1.0), 0)


def declare(host: VirtualHost, name: str, arguments: dict[str, object] | None = None, *, durable: bool = True) -> None:
    host.declare_queue(
        name, durable=durable, auto_delete=False, exclusive_to=None, connection=None, arguments=arguments or {}
    )


def fill(node: Node, disk: SimulatedDisk) -> None:
    """Somebody takes the disk until the alarm is raised."""
    disk.capacity -= disk.free_space() - LIMIT + 1
    node.maintain(1.0)
    assert node.alarm.startswith("low on disk")


def test_a_publisher_that_waits_for_the_alarm_fills_no_disk() -> None:
    """It publishes as fast as it can between two looks a second apart, 256 KiB a turn."""
    disk = SimulatedDisk(Random(1), 32 << 20)
    node = open_node(disk)
    host = node.virtual_hosts["/"]
    declare(host, "q")
    node.maintain(1.0)
    published = 0
    while not node.alarm:
        publish(host, 256 << 10)
        published += 1
        turn(node)
        assert published < 200
    assert LIMIT // 2 < disk.free_space() <= LIMIT + (1 << 20)


def test_what_waits_to_be_written_counts() -> None:
    """A commit is under way: nothing of this is on the disk yet."""
    disk = SimulatedDisk(Random(1), 32 << 20)
    node = open_node(disk)
    host = node.virtual_hosts["/"]
    declare(host, "q")
    node.maintain(1.0)
    publish(host, 10)
    commit = node.begin_commit()
    assert commit is not None
    free = disk.free_space()
    pending = 0
    while not node.alarm:
        publish(host, 256 << 10)
        pending += 256 << 10
        node.work(1.0)
        node.end_turn()
        assert pending < free
    assert free - pending > LIMIT // 2


GROWTH: list[Callable[[Node, VirtualHost], object]] = [
    lambda _, host: declare(host, "new"),
    lambda _, host: declare(host, "new", {"x-queue-type": "stream"}),
    lambda _, host: host.declare_exchange(
        "new", "fanout", durable=True, auto_delete=False, internal=False, arguments={}
    ),
    lambda _, host: host.bind_queue(host.queues["q"], "amq.topic", "new", {}),
    lambda _, host: host.bind_exchange("amq.fanout", "amq.topic", "new", {}),
    lambda node, _: node.administration.put_user("new", "secret"),
    lambda node, _: node.administration.set_permission("guest", "/", "a", "b", "c"),
    lambda node, _: node.administration.set_policy("/", "new", ".*", {"max-length": 1}),
    lambda node, _: node.administration.add_virtual_host("new"),
    lambda node, _: node.administration.set_virtual_host_limits("/", max_connections=1, max_queues=1),
]


@pytest.mark.parametrize("grow", GROWTH)
def test_nothing_durable_is_declared_in_alarm(grow: Callable[[Node, VirtualHost], object]) -> None:
    disk = SimulatedDisk(Random(1), 32 << 20)
    node = open_node(disk)
    host = node.virtual_hosts["/"]
    declare(host, "q")
    turn(node)
    fill(node, disk)
    with pytest.raises(ResourceRefused, match="low on disk"):
        grow(node, host)
    turn(node)
    disk.capacity += 1 << 30
    node.maintain(1.0)
    assert not node.alarm
    grow(node, host)


def test_deleting_consuming_and_what_is_not_durable_go_on_in_alarm() -> None:
    disk = SimulatedDisk(Random(1), 32 << 20)
    node = open_node(disk)
    host = node.virtual_hosts["/"]
    declare(host, "q")
    host.bind_queue(host.queues["q"], "amq.topic", "key", {})
    publish(host, 100)
    turn(node)
    fill(node, disk)
    declare(host, "q")
    declare(host, "transient", durable=False)
    entry = host.queues["q"].take(no_ack=False)
    assert entry is not None
    host.queues["q"].accept(entry)
    host.unbind("queue", "q", "amq.topic", "key", {})
    host.delete_queue("q", None, if_unused=False, if_empty=False)
    node.administration.delete_user("guest")
    turn(node)


def test_arguments_are_limited() -> None:
    node = open_node(SimulatedDisk(Random(1)))
    host = node.virtual_hosts["/"]
    declare(host, "q")
    large: dict[str, object] = {"x-comment": "a" * ARGUMENTS_BYTES_MAX}
    with pytest.raises(InvalidArgument, match="arguments of queue 'large'"):
        declare(host, "large", large)
    with pytest.raises(InvalidArgument, match="arguments of exchange"):
        host.declare_exchange("e", "fanout", durable=True, auto_delete=False, internal=False, arguments=large)
    with pytest.raises(InvalidArgument, match="arguments of a binding"):
        host.bind_queue(host.queues["q"], "amq.topic", "key", {"list": ["a" * 100] * 200})
    with pytest.raises(InvalidArgument, match="arguments of policy"):
        node.administration.set_policy("/", "p", ".*", large)


def test_a_disk_that_somebody_else_fills_costs_nothing_that_was_confirmed() -> None:
    disk = SimulatedDisk(Random(1), 32 << 20)
    node = open_node(disk)
    host = node.virtual_hosts["/"]
    declare(host, "q")
    confirmed = 0

    def count() -> None:
        nonlocal confirmed
        confirmed += 1

    for _ in range(10):
        publish(host, 10_000)
        node.when_durable(count)
        turn(node)
    disk.capacity -= disk.free_space()
    publish(host, 300_000)
    node.when_durable(count)
    with pytest.raises(OSError, match="space") as failure:
        turn(node)
    assert failure.value.errno == errno.ENOSPC
    assert confirmed == 10
    disk.lose_power()
    disk.capacity = 32 << 20
    node = open_node(disk)
    assert node.virtual_hosts["/"].queues["q"].message_count >= confirmed


def test_a_disk_that_does_not_say_how_much_is_free_counts_as_full(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk(Random(1))
    node = open_node(disk)

    def fail() -> int:
        raise OSError(errno.EIO, "statvfs")

    monkeypatch.setattr(disk, "free_space", fail)
    node.maintain(1.0)
    assert node.alarm.startswith("low on disk")
