"""Engine state that outlives connections: termini of 1.0, sessions of 0-10, branches of distributed transactions."""

from waybill.engine.amqp010.message_format import AMQP010
from waybill.engine.amqp010.sessions import Sessions
from waybill.engine.amqp10.termini import Termini
from waybill.engine.host import Host
from waybill.model.branches import Branches
from waybill.model.virtual_host import VirtualHost


def make_detached_state(host: Host) -> None:
    """Create the registers of detached state in a node that has its runtime and limits."""
    runtime = host.runtime
    limits = host.limits
    host.termini = Termini(runtime)
    host.termini.kept_per_user_max = limits.kept_links_per_user_max
    host.termini.durable_per_user_max = limits.durable_links_per_user_max
    host.sessions = Sessions(runtime)
    host.branches = Branches(runtime, AMQP010, limits.held_per_connection_max, limits.transaction_units_max)


def release_detached_state(host: Host) -> None:
    """The node stops: detached state returns its deliveries to the queues, marked as redelivered."""
    host.termini.release_all()
    host.sessions.release_all()
    host.branches.release_all()


def recover_detached_state(host: Host, virtual_hosts: dict[str, VirtualHost]) -> None:
    """Recover the stored detached state. The queues have recovered their messages."""
    host.termini.recover(virtual_hosts)
    host.branches.recover(virtual_hosts)
